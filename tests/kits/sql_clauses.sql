SELECT * FROM VALUES (1, 'a'), (2, 'b') AS t(n, s) |> WHERE n > 1 |> SELECT s, n + 1 AS m
SELECT * FROM VALUES (1, 'a'), (2, 'b') AS t(n, s) |> EXTEND n * 2 AS d |> SET n = n + 1 |> DROP s |> AS u |> ORDER BY n DESC |> LIMIT 1
TABLE t1 |> AGGREGATE sum(n) AS total GROUP BY s |> ORDER BY total
TABLE t1 |> AGGREGATE sum(n), count(*)
TABLE t1 |> JOIN t2 USING (n) |> WHERE n IS NOT NULL
TABLE t1 |> LEFT JOIN t2 ON t1.n = t2.n |> SELECT t1.n
TABLE t1 |> UNION ALL TABLE t1 |> LIMIT 3
TABLE t1 |> TABLESAMPLE (100 PERCENT)
TABLE t1 |> PIVOT (count(*) FOR s IN ('a', 'b'))
TABLE t1 |> UNPIVOT (v FOR k IN (n))
SELECT n, count(*) FROM t1 GROUP BY ALL HAVING count(*) > 0 ORDER BY n NULLS LAST LIMIT ALL
SELECT s, sum(n) FROM t1 GROUP BY ROLLUP (s, n)
SELECT s, sum(n) FROM t1 GROUP BY s, n WITH CUBE
SELECT s, sum(n) FROM t1 GROUP BY GROUPING SETS ((s), (s, n), ())
SELECT s, n, sum(n) FROM t1 GROUP BY s, n GROUPING SETS ((s), n, ())
SELECT s, sum(n) FROM t1 GROUP BY s, CUBE (n), GROUPING SETS (ROLLUP (n), ())
SELECT * FROM (t1 JOIN t2 USING (n)) AS j
SELECT * FROM ((SELECT 1 AS a) UNION (SELECT 2)) q
SELECT * FROM ((SELECT 1 AS a) q JOIN (SELECT 1 AS a) r USING (a))
(SELECT 1) UNION ALL (SELECT 2) ORDER BY 1 LIMIT 1
SELECT 1 UNION SELECT 2 INTERSECT SELECT 2 EXCEPT ALL SELECT 1
((SELECT 1))
(VALUES (1), (2)) ORDER BY 1
VALUES (1, 2), (3, 4) ORDER BY col1 LIMIT 1 OFFSET 1
SELECT * FROM t1 a, t2 b, LATERAL (SELECT a.n + 1 AS m) l
SELECT * FROM t1 CROSS JOIN t2
SELECT * FROM t1 NATURAL JOIN t2
SELECT * FROM t1 LEFT SEMI JOIN t2 ON t1.n = t2.n
SELECT * FROM t1 LEFT ANTI JOIN t2 USING (n)
SELECT * FROM t1 FULL OUTER JOIN t2 ON t1.n = t2.n AND t1.s LIKE 'a%'
SELECT * FROM t1 RIGHT JOIN t2 ON NOT (t1.n > t2.n OR t1.n = 1)
SELECT * FROM t1 SEMI JOIN t2 USING (n) ANTI JOIN t2 AS u USING (n)
SELECT c FROM t1 LATERAL VIEW explode(array(1, 2)) x AS c
SELECT c, d FROM t1 LATERAL VIEW OUTER explode(array()) x AS c LATERAL VIEW explode(map('a', 1)) y AS d, e
SELECT * FROM t1 PIVOT (sum(n) AS total, count(*) AS many FOR s IN ('a' AS x, 'b'))
SELECT * FROM (SELECT s, n, n + 1 AS m FROM t1) PIVOT (sum(n) FOR (s, m) IN (('a', 2), ('b', 3)))
SELECT * FROM t3 UNPIVOT INCLUDE NULLS (v FOR k IN (a AS aa, b))
SELECT * FROM t3 UNPIVOT ((v, w) FOR k IN ((a, b) AS one, (b, a)))
SELECT * FROM t1 TABLESAMPLE (2 ROWS)
SELECT * FROM t1 TABLESAMPLE (50 PERCENT) REPEATABLE (7) AS u WHERE n > 100
SELECT * FROM t1 TABLESAMPLE (BUCKET 1 OUT OF 1) u
SELECT * FROM range(3)
SELECT id FROM range(0, 10, 2) AS r(id) WHERE id % 3 <> 1
SELECT * FROM explode(array(1, 2)) AS e(c)
SELECT * FROM t1, LATERAL explode(array(n, n + 1)) AS e(c)
SELECT * FROM inline(array(struct(1, 'a'), struct(2, 'b')))
SELECT /*+ BROADCAST(t2) */ * FROM t1 JOIN t2 USING (n)
SELECT /*+ COALESCE(1), REPARTITION(2, n) */ DISTINCT n FROM t1
WITH a AS (SELECT 1 AS x), b(y) AS (SELECT x + 1 FROM a) SELECT * FROM a, b
WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r
WITH RECURSIVE r(n) MAX RECURSION LEVEL 10 AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT sum(n) FROM r
SELECT * FROM (WITH a AS (SELECT 2 AS x) SELECT * FROM a)
SELECT (SELECT max(n) FROM t1), EXISTS (SELECT 1 FROM t1 WHERE n = 1), n IN (SELECT n FROM t2) FROM t1
SELECT (n, s) IN (SELECT n, s FROM t1) FROM t1
SELECT n FROM t1 WHERE (n, s) IN ((1, 'a'), (2, 'x'))
SELECT sum(n) OVER (PARTITION BY s ORDER BY n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t1
SELECT sum(n) OVER (ORDER BY n RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING), rank() OVER w, row_number() OVER (w) FROM t1 WINDOW w AS (PARTITION BY s ORDER BY n DESC NULLS FIRST)
SELECT lag(n) IGNORE NULLS OVER (ORDER BY n), last_value(n) RESPECT NULLS OVER (ORDER BY n ROWS UNBOUNDED PRECEDING) FROM t1
SELECT count(DISTINCT n, s), count(ALL n), sum(n) FILTER (WHERE s = 'a'), count(*) FILTER (WHERE n > 1 AND s IN ('a', 'b')) FROM t1
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY n DESC), mode() WITHIN GROUP (ORDER BY s), listagg(s, ',') WITHIN GROUP (ORDER BY s) FROM t1
SELECT first(n IGNORE NULLS), last(n, true), any_value(s IGNORE NULLS) FROM t1
SELECT n, row_number() OVER (ORDER BY n) AS r FROM t1 QUALIFY r = 1
SELECT * EXCEPT (s) FROM t1
SELECT t1.* EXCEPT (n), t2.* FROM t1 JOIN t2 USING (n)
SELECT a.b.c, a.b['c'], (a.b).c, m['k'], l[0].x FROM (SELECT named_struct('b', named_struct('c', 1)) AS a, map('k', 2) AS m, array(named_struct('x', 3)) AS l)
SELECT struct(1 AS a, 'x' AS b), (1, 2, 'c'), named_struct('a', 1).a
SELECT transform(array(1, 2, 3), x -> x + 1), aggregate(array(1, 2), 0, (acc, x) -> acc + x, acc -> acc * 10), filter(array(1, 2), (x, i) -> i = 0 OR x > 5)
SELECT exists(array(1, 2), x -> x = 2), exists(SELECT 1)
SELECT CASE WHEN n > 1 THEN 'big' WHEN n = 1 THEN 'one' ELSE NULL END, CASE s WHEN 'a' THEN 1 END FROM t1
SELECT CAST('1' AS DECIMAL(10, 2)), TRY_CAST('x' AS INT), '5'::BIGINT + 1, CAST(NULL AS ARRAY<MAP<STRING, STRUCT<a: INT, b: ARRAY<DOUBLE>>>>), CAST('1' AS INTERVAL DAY)
SELECT CAST(INTERVAL '1-2' YEAR TO MONTH AS STRING), INTERVAL '1 02:03:04.5' DAY TO SECOND, INTERVAL 3 DAYS 2 HOURS, INTERVAL '1 day 2 hours', INTERVAL -5 MINUTES, INTERVAL '2' WEEK, INTERVAL 1.5 SECONDS
SELECT DATE '2024-02-29' + INTERVAL 1 YEAR, TIMESTAMP '2024-01-01 00:00:00' - INTERVAL '1' HOUR, TIMESTAMP_NTZ '2024-01-01', X'1F2b', TIMESTAMP_LTZ'2024-01-01 10:00:00+02:00'
SELECT EXTRACT(HOUR FROM TIMESTAMP '2024-01-01 05:00:00'), extract(DOW FROM DATE '2024-01-01'), date_part('day', DATE '2024-01-05')
SELECT TRIM('  a '), TRIM(BOTH 'x' FROM 'xax'), TRIM(LEADING FROM '  a'), TRIM(TRAILING 'b' FROM 'abb'), TRIM('x' FROM 'xx1')
SELECT SUBSTRING('abcdef' FROM 2 FOR 3), SUBSTR('abcdef', 2), SUBSTRING('abc' FROM 2), POSITION('b' IN 'abc'), OVERLAY('abcdef' PLACING 'X' FROM 2 FOR 3)
SELECT timestampadd(HOUR, 1, TIMESTAMP '2024-01-01 00:00:00'), timestampdiff(MONTH, DATE '2024-01-01', DATE '2024-05-02'), dateadd(DAY, 2, DATE '2024-01-01'), datediff(DATE '2024-01-05', DATE '2024-01-01'), date_diff(WEEK, DATE '2024-01-01', DATE '2024-01-20')
SELECT 1 + 2 * 3 - 4 / 2 % 3, -2 * -3, - - 1, +1, ~5 & 3 | 8 ^ 2, 1 << 2 + 1, 16 >> 1 >> 1, -16 >>> 60, 7 DIV 2 * 2, 'a' || 'b' || 1
SELECT 1 < 2 = true, 1 <> 2, 1 != 2, 1 == 1, NULL <=> NULL, 2 >= 1 AND 1 <= 1, NOT 1 > 2 AND true OR false, NOT NOT true, ! false
SELECT 1 BETWEEN 0 AND 2 AND true, 5 NOT BETWEEN 1 + 1 AND 2 * 2, n NOT IN (1, 2) OR n IN (3), s NOT LIKE 'a%', s LIKE 'a!_%' ESCAPE '!', s ILIKE 'A%', s RLIKE '^a', s REGEXP 'b', s LIKE ANY ('a', 'b%'), s NOT LIKE ALL ('x', 'y'), s ILIKE SOME ('A') FROM t1
SELECT n IS NULL, n IS NOT NULL, (n > 1) IS TRUE, (n > 1) IS NOT FALSE, (n > 1) IS UNKNOWN, n IS DISTINCT FROM 1, n IS NOT DISTINCT FROM NULL, n = 1 IS TRUE FROM t1
SELECT 1.5, .5, 1., 1e3, 1.5E-2, 2L, 3S, 4Y, 1.5D, 2F, 1.25BD, 1e2D, 0.1 + 0.2
SELECT 'it''s', 'a' 'b', r'\d+', R"x\y", 'tab\tend', 'q\'q', '\u0041', 'a\\b'
SELECT `n`, t1.`n` FROM t1
SELECT n AS `a b`, s AS `c d` FROM t1 AS `x y`
SELECT s COLLATE UTF8_LCASE = 'A' FROM t1
SELECT current_date() = current_date, current_timestamp() IS NOT NULL, user IS NOT NULL
SELECT stack(2, 1, 'a', 2, 'b') AS (k, v)
SELECT posexplode(array('x', 'y')) AS (p, q)
SELECT explode(map('a', 1))
SELECT n x FROM t1 y WHERE y.n = 1 GROUP BY n HAVING n > 0 ORDER BY x DESC, n ASC NULLS FIRST
SELECT n FROM t1 SORT BY n
SELECT n FROM t1 DISTRIBUTE BY n SORT BY n DESC
SELECT n FROM t1 CLUSTER BY n
SELECT if(n > 1, 'x', 'y'), left('abc', 2), right('abc', 1), year(DATE '2024-01-01'), day(DATE '2024-01-03'), date('2024-01-01'), timestamp('2024-01-01'), string(1), array(1)[0], map('a', 1)['a'], replace('abc', 'b', 'x'), char(65), float(1), first_value(n) OVER (ORDER BY n) FROM t1
SELECT /* why */ n -- because
 FROM t1 /* and /* nested */ */ WHERE n > 0
SELECT date, time, value, key, type, user_name, year, month, hour, row, rows, range, filter, position, source, status FROM (SELECT 1 date, 2 time, 3 value, 4 key, 5 type, 6 user_name, 7 year, 8 month, 9 hour, 10 row, 11 rows, 12 range, 13 filter, 14 position, 15 source, 16 status)
SELECT to_json(named_struct('a', 1), map('timestampFormat', 'x')), from_json('{"a":1}', 'a INT').a, variant_get(parse_json('{"a":1}'), '$.a', 'int')
SELECT approx_count_distinct(n, 0.05), percentile_approx(n, array(0.5, 0.9), 100), max_by(s, n), collect_list(s), count_if(n > 1), bool_and(n > 0), stddev(n), corr(n, n) FROM t1
SELECT sum(n) + 1 AS x, max(s) FROM t1 WHERE n + 1 > 1 GROUP BY n % 2, substring(s, 1, 1) ORDER BY sum(n) DESC, 2 LIMIT 5 OFFSET 0
SELECT grouping(s), grouping_id(), s FROM t1 GROUP BY CUBE (s)
SELECT window.start, count(*) FROM (SELECT TIMESTAMP '2024-01-01 00:00:01' AS ts) GROUP BY window(ts, '1 minute')
SELECT a.* FROM (SELECT named_struct('x', 1, 'y', 2) AS a)
SELECT sum(n) FILTER (WHERE n > 0) OVER (PARTITION BY s) FROM t1
SELECT session_user() IS NOT NULL, bround(2.5), div(7, 2), mod(7, 3), pmod(-7, 3), 5 div 2
SELECT n, sum(n) OVER w FROM t1 WINDOW w AS (PARTITION BY s ORDER BY n) ORDER BY n DESC LIMIT 2
SELECT d FROM t1 LATERAL VIEW explode(array(1, 2)) AS d
SELECT r"a\n" AS b, R'a\n' AS c
SELECT CAST('2026-01-01' AS TIMESTAMP WITHOUT TIME ZONE) AS a
