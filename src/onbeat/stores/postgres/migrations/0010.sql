-- Documents are listed in pages by the bytes of their names, whatever the collation of the database.
ALTER TABLE documents ALTER COLUMN name TYPE text COLLATE "C";
