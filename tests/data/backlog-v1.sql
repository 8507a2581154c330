-- A backlog as dibs wrote it with schema version 1: three issues, one held, one moved on.
BEGIN TRANSACTION;
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    high INTEGER NOT NULL,
    uptime INTEGER NOT NULL,
    boot TEXT NOT NULL
);
INSERT INTO "clock" VALUES(1,1763301442876,17272702,'another boot');
CREATE TABLE comments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    number INTEGER NOT NULL REFERENCES issues (number),
    author TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
INSERT INTO "comments" VALUES(1,2,'ada','<!-- claim run=20f581741dbc ttl=600s v=1 holder=ada stage=ready state=held prev=2025-11-16T14:07:23.362Z fence=1 -->
Claimed by **ada** for `ready`; the lease runs 10m.',1763301443364,1763301443364);
INSERT INTO "comments" VALUES(2,3,'ada','<!-- claim run=761a80c9fe44 ttl=600s v=1 holder=ada stage=ready state=released prev=2025-11-16T13:57:23.791Z outcome=advanced next=review shown=1 fence=1 -->
**ada** ended its lease for `ready`: advanced to `review`.',1763301443643,1763301443796);
CREATE TABLE granter (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    store TEXT NOT NULL,
    target TEXT,
    floor INTEGER NOT NULL,
    mover TEXT NOT NULL
);
INSERT INTO "granter" VALUES(1,'auto',NULL,0,'');
CREATE TABLE issue_labels (
    label TEXT NOT NULL,
    open INTEGER NOT NULL,
    shelved INTEGER NOT NULL,
    number INTEGER NOT NULL REFERENCES issues (number),
    PRIMARY KEY (label, open, shelved, number)
) WITHOUT ROWID;
INSERT INTO "issue_labels" VALUES('stage:ready',1,0,1);
INSERT INTO "issue_labels" VALUES('claimed',1,1,2);
INSERT INTO "issue_labels" VALUES('stage:processing',1,1,2);
INSERT INTO "issue_labels" VALUES('stage:ready',1,1,2);
INSERT INTO "issue_labels" VALUES('stage:review',1,0,3);
CREATE TABLE issues (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    author TEXT NOT NULL,
    open INTEGER NOT NULL DEFAULT 1,
    comment_count INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
INSERT INTO "issues" VALUES(1,'a free issue','','ada',1,0,1763301443144,1763301443144);
INSERT INTO "issues" VALUES(2,'a held issue','','ada',1,1,1763301443152,1763301443364);
INSERT INTO "issues" VALUES(3,'an issue that moved on','','ada',1,1,1763301443152,1763301443796);
CREATE TABLE leases (
    repo TEXT NOT NULL,
    key TEXT NOT NULL,
    fence INTEGER NOT NULL,
    run TEXT NOT NULL,
    holder TEXT NOT NULL,
    stage TEXT NOT NULL,
    ttl_ms INTEGER NOT NULL,
    granted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    beats INTEGER NOT NULL,
    outcome TEXT,
    next TEXT,
    note TEXT,
    painted INTEGER NOT NULL,
    revoked_by TEXT,
    revoked_why TEXT,
    revoked_now INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (repo, key)
) WITHOUT ROWID;
INSERT INTO "leases" VALUES('','2',1,'20f581741dbc','ada','ready',600000,1763301443362,1763302043362,0,NULL,NULL,NULL,1,NULL,NULL,0);
INSERT INTO "leases" VALUES('','3',1,'761a80c9fe44','ada','ready',600000,1763301443637,1763301443791,0,'advanced','review','',1,NULL,NULL,0);
CREATE TABLE pauses (
    scope TEXT NOT NULL,
    repo TEXT NOT NULL,
    reason TEXT NOT NULL,
    said_by TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, repo)
) WITHOUT ROWID;
CREATE TABLE shelf (label TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO "shelf" VALUES('claimed');
INSERT INTO "shelf" VALUES('do-not-pickup');
INSERT INTO "shelf" VALUES('parked');
INSERT INTO "shelf" VALUES('paused');
CREATE INDEX issues_by_state ON issues (open, number);
CREATE INDEX labels_by_issue ON issue_labels (number, label);
CREATE INDEX comments_by_issue ON comments (number, id);
CREATE INDEX leases_running ON leases (expires_at) WHERE outcome IS NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('issues',3);
INSERT INTO "sqlite_sequence" VALUES('comments',2);
COMMIT;
