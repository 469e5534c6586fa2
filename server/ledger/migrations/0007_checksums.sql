-- From this version on, all pages of a SQLite database have checksums. Programs that know only older versions would write
-- pages without them, so they must not open the database. PostgreSQL has checksums of its own.

-- +goose Up
SELECT 1;

-- +goose Down
SELECT 1;
