"""What is done with results, measured or simulated: files, tables, pictures, a page, comparisons."""
