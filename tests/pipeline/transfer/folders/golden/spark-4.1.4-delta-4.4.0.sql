-- What made the tables in spark-4.1.4-delta-4.4.0.zip: Spark 4.1.4 with io.delta:delta-spark_4.1_2.13:4.4.0, session time zone UTC.
CREATE TABLE vectors (id BIGINT, name STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors'='true');
INSERT INTO vectors SELECT id, concat('n', id) FROM range(0, 10, 1, 1);
INSERT INTO vectors SELECT id, concat('n', id) FROM range(10, 20, 1, 1);
DELETE FROM vectors WHERE id % 3 = 0;

CREATE TABLE mapped (id BIGINT NOT NULL COMMENT 'the key', old STRING, gone INT, s STRUCT<a: INT, b: ARRAY<STRUCT<x: INT>>>,
    m MAP<STRING, STRUCT<y: INT>>, p STRING) USING delta PARTITIONED BY (p) COMMENT 'of names'
    TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.enableDeletionVectors'='true', 'team'='a');
INSERT INTO mapped SELECT /*+ COALESCE(1) */ id, concat('o', id), 1, named_struct('a', int(id), 'b', array(named_struct('x', 1))),
    map('k', named_struct('y', 2)), if(id = 0, NULL, concat('p ', id % 2)) FROM range(4);
ALTER TABLE mapped RENAME COLUMN old TO `new name`;
ALTER TABLE mapped RENAME COLUMN p TO part;
ALTER TABLE mapped RENAME COLUMN s.a TO aa;
ALTER TABLE mapped DROP COLUMN gone;
ALTER TABLE mapped ADD COLUMN gone STRING;
INSERT INTO mapped SELECT 10, 'x', named_struct('aa', 7, 'b', array(named_struct('x', 9))), NULL, 'p 1', 'here';
DELETE FROM mapped WHERE id = 3;

CREATE TABLE ids (id BIGINT, v STRING) USING delta TBLPROPERTIES ('delta.columnMapping.mode'='id');
INSERT INTO ids VALUES (1, 'a');
ALTER TABLE ids RENAME COLUMN v TO w;

CREATE TABLE widened (b BYTE, s SHORT, i INT, f FLOAT, d DECIMAL(5,2), day DATE, di INT, dd INT) USING delta
    TBLPROPERTIES ('delta.enableTypeWidening'='true', 'delta.feature.timestampNtz'='supported');
INSERT INTO widened VALUES (1, 2, 3, 1.5, 1.25, DATE'2026-01-01', 4, 5);
ALTER TABLE widened ALTER COLUMN b TYPE INT;
ALTER TABLE widened ALTER COLUMN s TYPE BIGINT;
ALTER TABLE widened ALTER COLUMN i TYPE BIGINT;
ALTER TABLE widened ALTER COLUMN f TYPE DOUBLE;
ALTER TABLE widened ALTER COLUMN d TYPE DECIMAL(9,3);
ALTER TABLE widened ALTER COLUMN day TYPE TIMESTAMP_NTZ;
ALTER TABLE widened ALTER COLUMN di TYPE DOUBLE;
ALTER TABLE widened ALTER COLUMN dd TYPE DECIMAL(12,1);
INSERT INTO widened VALUES (1000, 20000000000, 30000000000, 1e300, 12345.125, TIMESTAMP_NTZ'2026-01-02 03:04:05', 0.5, 1.5);

CREATE TABLE kinds (id BIGINT, t BYTE, sm SHORT, f FLOAT, ok BOOLEAN, bin BINARY, ts TIMESTAMP, ntz TIMESTAMP_NTZ, d DECIMAL(38,10),
    c CHAR(3), v VARCHAR(5), day DATE, bp STRING) USING delta PARTITIONED BY (ts, ok, t, f, d)
    TBLPROPERTIES ('delta.checkpointPolicy'='v2', 'delta.enableRowTracking'='true', 'delta.enableInCommitTimestamps'='true');
INSERT INTO kinds (t, sm, f, ok, bin, ts, ntz, d, c, v, bp) VALUES
    (1, 2, 1.5, true, X'00FF', TIMESTAMP'1500-01-01 00:00:00.123456', TIMESTAMP_NTZ'1500-01-01 00:00:00.123456', 1.1, 'ab', 'x', ''),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (-1, 2, float('nan'), false, X'', TIMESTAMP'2026-01-01 12:00:00', NULL, -12345678901234567890.0000000001, 'abc', '', 'z');
INSERT INTO kinds (t) VALUES (5);

CREATE TABLE variants (id INT, v VARIANT) USING delta;
INSERT INTO variants SELECT 1, parse_json('{"a":1}');
CREATE TABLE empty (id INT) USING delta;
