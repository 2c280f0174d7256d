"""From the records of the torch.compile study to its tables, workbook and page.

`load` reads records, `rows` combines replicates and averages ratios, `questions` answers the
research questions, `sheets` builds the tables; `workbook`, `latex` and `page` only render.
"""
