-- Checksums of the rows that decide what is counted, computed by the program: see rowsum.go. Tables of identities have an index
-- over the columns that decide access instead, with which SQLite's integrity check compares the rows.

-- +goose Up
ALTER TABLE runs ADD COLUMN receipts BIGINT NOT NULL DEFAULT 0; -- rows in the table receipts
UPDATE runs SET receipts = (SELECT count(*) FROM receipts r WHERE r.run = runs.id);

ALTER TABLE runs ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE machines ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE members ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE versions ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE rounds ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE receipts ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE partials ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE updates ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE server_data ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE releases ADD COLUMN checksum BIGINT NOT NULL DEFAULT 0;

CREATE INDEX users_access ON users (role, source, name);
CREATE INDEX certificates_access ON certificates (revoked, serial);
CREATE INDEX tokens_access ON tokens (uses, expires, revoked, clients, pattern);
CREATE INDEX agents_access ON agents (revoked, serial, issued, switched, previous, pending, most_clients, pattern, copied);
CREATE INDEX clients_access ON clients (revoked, freed, step, inputs);

-- +goose Down
DROP INDEX clients_access;
DROP INDEX agents_access;
DROP INDEX tokens_access;
DROP INDEX certificates_access;
DROP INDEX users_access;
ALTER TABLE releases DROP COLUMN checksum;
ALTER TABLE server_data DROP COLUMN checksum;
ALTER TABLE updates DROP COLUMN checksum;
ALTER TABLE partials DROP COLUMN checksum;
ALTER TABLE receipts DROP COLUMN checksum;
ALTER TABLE leases DROP COLUMN checksum;
ALTER TABLE rounds DROP COLUMN checksum;
ALTER TABLE versions DROP COLUMN checksum;
ALTER TABLE members DROP COLUMN checksum;
ALTER TABLE machines DROP COLUMN checksum;
ALTER TABLE runs DROP COLUMN checksum;
ALTER TABLE runs DROP COLUMN receipts;
