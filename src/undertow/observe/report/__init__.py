"""Reports about results, measured or simulated: files, tables, pictures, pages, comparisons."""
