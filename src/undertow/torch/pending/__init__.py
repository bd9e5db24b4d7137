"""Parameters and gradients whose readers wait: their classes, and who else refers to their memory."""
