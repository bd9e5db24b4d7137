"""Reports on measured or simulated results: files, tables, pictures, pages, comparisons."""
