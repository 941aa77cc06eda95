-- The tables of one broker file. All instants are unix seconds.
--
--   queue       a declared queue, with the count and bytes of its dead letters
--   binding     the ways from exchanges into queues; arguments is JSON: [[name, value], …]
--   own         queues that end with a run (`run` NULL: it is over, and the queue stays only as
--               long as it has dead letters, or something in it is leased); ids may be used again
--   message     every message that isn't dead, wherever it is; `n` is its place in the order of
--               arrival (a requeue or a due time that has come gives it a new, higher one)
--   ready       waiting messages in the order of delivery: (queue, place), place as in place.py
--   delayed     messages due later, by due time; `message.due_at` repeats the key
--   run         workers that were started; `dead` ones stay a while so that they can be told;
--               `seen_at` is the last sign of life, `beat_at` the last heartbeat itself
--   owner       pool processes of living runs, `gone` once abandoned; leases up to `begin` are
--               marked as begun; `turn` and `reply`: the last turn and what it answered
--               (JSON: [first lease handed out, [lost], [[refused lease, sentence]]])
--   lease       which message an owner holds; a message that is in none of ready, delayed and
--               lease doesn't exist
--   revocation  the log; its version is the AUTOINCREMENT counter
--   named_lease, bucket, counter   what `Coordinator` says, by name; over from `until` on (a
--               bucket is full by then)
--   heard       commands that several workers have heard and one of them carries out
--   dead        dead letters, oldest first by `n`; history is JSON: [[unix seconds, sentence], …]
--   broadcast   what was told to subscribers in the last minute
--   result      task states and values
--
-- A message's first columns change seldom and its blob never, so that leasing one touches only
-- the two narrow trees `ready` and `lease`: 3 tree updates to publish, 2 to lease, 3 to settle.

CREATE TABLE IF NOT EXISTS queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    dead_count INTEGER NOT NULL DEFAULT 0,
    dead_bytes INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS binding (
    n INTEGER PRIMARY KEY,
    exchange TEXT NOT NULL,
    type TEXT NOT NULL,
    queue TEXT NOT NULL,
    routing_key TEXT NOT NULL,
    arguments TEXT NOT NULL,
    UNIQUE (exchange, queue, routing_key, arguments)
);

CREATE TABLE IF NOT EXISTS own (
    queue INTEGER PRIMARY KEY,
    run TEXT
);

CREATE TABLE IF NOT EXISTS message (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    queue INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due_at REAL,
    front INTEGER NOT NULL DEFAULT 0,
    redeliveries INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0,
    unknown_since_at REAL,
    loss TEXT,
    detail TEXT,
    info BLOB,
    history TEXT,
    blob BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS message_id ON message (id);

CREATE TABLE IF NOT EXISTS ready (
    queue INTEGER NOT NULL,
    place INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (queue, place)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS delayed (
    due_at REAL NOT NULL,
    n INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    PRIMARY KEY (due_at, n)
) WITHOUT ROWID;

-- AUTOINCREMENT: its counter also says whether any worker was ever here.
CREATE TABLE IF NOT EXISTS run (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL UNIQUE,
    info BLOB NOT NULL,
    seen_at REAL NOT NULL,
    beat_at REAL,
    lease_time REAL NOT NULL,
    dead INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS owner (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    run INTEGER NOT NULL,
    gone INTEGER NOT NULL DEFAULT 0,
    begin INTEGER NOT NULL DEFAULT 0,
    last_lease INTEGER NOT NULL DEFAULT 0,
    turn INTEGER NOT NULL DEFAULT 0,
    reply TEXT
);

CREATE TABLE IF NOT EXISTS lease (
    owner INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (owner, lease)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS revocation (
    version INTEGER PRIMARY KEY AUTOINCREMENT,
    task_id TEXT NOT NULL,
    terminate INTEGER NOT NULL,
    signal TEXT NOT NULL,
    revoked_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS revocation_task ON revocation (task_id);

CREATE TABLE IF NOT EXISTS heard (
    name TEXT PRIMARY KEY,
    heard_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS named_lease (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    until REAL NOT NULL,
    seconds REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS bucket (
    name TEXT PRIMARY KEY,
    tokens REAL NOT NULL,
    at REAL NOT NULL,
    until REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS counter (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL,
    until REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS dead (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    queue INTEGER NOT NULL,
    reason TEXT NOT NULL,
    error TEXT NOT NULL,
    died_at REAL NOT NULL,
    redeliveries INTEGER NOT NULL,
    history TEXT NOT NULL,
    size INTEGER NOT NULL,
    blob BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS dead_id ON dead (id);
CREATE INDEX IF NOT EXISTS dead_queue ON dead (queue, n);

CREATE TRIGGER IF NOT EXISTS dead_in AFTER INSERT ON dead BEGIN
    UPDATE queue SET dead_count = dead_count + 1, dead_bytes = dead_bytes + new.size
    WHERE id = new.queue;
END;
CREATE TRIGGER IF NOT EXISTS dead_out AFTER DELETE ON dead BEGIN
    UPDATE queue SET dead_count = dead_count - 1, dead_bytes = dead_bytes - old.size
    WHERE id = old.queue;
END;

CREATE TABLE IF NOT EXISTS broadcast (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,
    payload BLOB NOT NULL,
    sent_at REAL NOT NULL
);

CREATE TABLE IF NOT EXISTS result (
    task_id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    meta BLOB NOT NULL,
    expires_at REAL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS result_expiry ON result (expires_at) WHERE expires_at IS NOT NULL;
