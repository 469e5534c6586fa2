-- Protection against hostile members: limits on updates, tokens with bounds, identities that last, and declines that
-- operators see.

-- +goose Up
ALTER TABLE tokens ADD COLUMN id TEXT NOT NULL DEFAULT ''; -- for people; it gives no access
ALTER TABLE tokens ADD COLUMN created BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN actor TEXT NOT NULL DEFAULT '';
ALTER TABLE tokens ADD COLUMN clients BIGINT NOT NULL DEFAULT 0; -- most clients of an agent; 0 means the server's limit
ALTER TABLE tokens ADD COLUMN pattern TEXT NOT NULL DEFAULT ''; -- of clients' names; empty means any
ALTER TABLE tokens ADD COLUMN joined BIGINT NOT NULL DEFAULT 0; -- agents that joined with it
ALTER TABLE tokens ADD COLUMN revoked BIGINT NOT NULL DEFAULT 0;
CREATE INDEX tokens_id ON tokens (id);
CREATE INDEX tokens_created ON tokens (created, id);

ALTER TABLE agents ADD COLUMN token TEXT NOT NULL DEFAULT ''; -- id of the token with which it joined last
ALTER TABLE agents ADD COLUMN most_clients BIGINT NOT NULL DEFAULT 0; -- of its token
ALTER TABLE agents ADD COLUMN pattern TEXT NOT NULL DEFAULT ''; -- of its token
ALTER TABLE agents ADD COLUMN protocol BIGINT NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN serial TEXT NOT NULL DEFAULT ''; -- of the newest certificate that it has used
ALTER TABLE agents ADD COLUMN issued BIGINT NOT NULL DEFAULT 0; -- when that was issued
ALTER TABLE agents ADD COLUMN switched BIGINT NOT NULL DEFAULT 0; -- when it used that first
ALTER TABLE agents ADD COLUMN previous TEXT NOT NULL DEFAULT ''; -- serial of the certificate that it used before
ALTER TABLE agents ADD COLUMN pending TEXT NOT NULL DEFAULT ''; -- serial of a certificate that was issued and not used yet
ALTER TABLE agents ADD COLUMN copied BIGINT NOT NULL DEFAULT 0; -- when two machines were seen with its identity
CREATE INDEX agents_token ON agents (token, id);

ALTER TABLE certificates ADD COLUMN renews TEXT NOT NULL DEFAULT ''; -- serial of the first of the certificates that were renewed one after the other
CREATE INDEX certificates_renews ON certificates (renews);

ALTER TABLE runs ADD COLUMN left_out TEXT NOT NULL DEFAULT ''; -- which clients and inputs its fleet does not have, and why

ALTER TABLE clients ADD COLUMN freed BIGINT NOT NULL DEFAULT 0; -- when an operator let other agents have it

ALTER TABLE versions ADD COLUMN server TEXT NOT NULL DEFAULT ''; -- blob of fed/round.Server at this version
ALTER TABLE versions ADD COLUMN limits BYTEA; -- Limits for updates from this version; NULL if there are none
ALTER TABLE versions ADD COLUMN created BIGINT NOT NULL DEFAULT 0;
ALTER TABLE versions ADD COLUMN rolled_back BIGINT; -- the version whose weights these are; NULL if a merge made them
CREATE INDEX versions_server ON versions (server);

ALTER TABLE leases ADD COLUMN latest BIGINT NOT NULL DEFAULT 0; -- no extension goes beyond this; 0 means no limit

ALTER TABLE receipts ADD COLUMN norm DOUBLE PRECISION NOT NULL DEFAULT 0; -- of the update, after clipping
ALTER TABLE receipts ADD COLUMN control_norm DOUBLE PRECISION NOT NULL DEFAULT 0;

-- Turns that agents declined or that were lost, until the run is deleted.
CREATE TABLE declines (
    run    TEXT NOT NULL,
    round  BIGINT NOT NULL,
    client TEXT NOT NULL,
    agent  TEXT NOT NULL,
    code   TEXT NOT NULL, -- kind of the reason; lost if the lease expired
    reason TEXT NOT NULL,
    at     BIGINT NOT NULL,
    PRIMARY KEY (run, round, client)
);
CREATE INDEX declines_client ON declines (client, at);

-- Secrets that all processes of this server share.
CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BYTEA NOT NULL
);

-- +goose Down
DROP TABLE secrets;
DROP TABLE declines;
ALTER TABLE receipts DROP COLUMN control_norm;
ALTER TABLE receipts DROP COLUMN norm;
ALTER TABLE leases DROP COLUMN latest;
DROP INDEX versions_server;
ALTER TABLE versions DROP COLUMN rolled_back;
ALTER TABLE versions DROP COLUMN created;
ALTER TABLE versions DROP COLUMN limits;
ALTER TABLE versions DROP COLUMN server;
ALTER TABLE clients DROP COLUMN freed;
ALTER TABLE runs DROP COLUMN left_out;
DROP INDEX certificates_renews;
ALTER TABLE certificates DROP COLUMN renews;
DROP INDEX agents_token;
ALTER TABLE agents DROP COLUMN copied;
ALTER TABLE agents DROP COLUMN pending;
ALTER TABLE agents DROP COLUMN previous;
ALTER TABLE agents DROP COLUMN switched;
ALTER TABLE agents DROP COLUMN issued;
ALTER TABLE agents DROP COLUMN serial;
ALTER TABLE agents DROP COLUMN protocol;
ALTER TABLE agents DROP COLUMN pattern;
ALTER TABLE agents DROP COLUMN most_clients;
ALTER TABLE agents DROP COLUMN token;
DROP INDEX tokens_created;
DROP INDEX tokens_id;
ALTER TABLE tokens DROP COLUMN revoked;
ALTER TABLE tokens DROP COLUMN joined;
ALTER TABLE tokens DROP COLUMN pattern;
ALTER TABLE tokens DROP COLUMN clients;
ALTER TABLE tokens DROP COLUMN actor;
ALTER TABLE tokens DROP COLUMN created;
ALTER TABLE tokens DROP COLUMN id;
