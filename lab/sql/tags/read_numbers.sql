-- The next committed numbers, for the tracker of the highest number below which none is missing.
--
-- Binds: $1 bigint after. Rows: at most 10,000. Index: journal_pkey (journal_ordering_idx).
SELECT ordering
FROM journal
WHERE ordering > $1
ORDER BY ordering
LIMIT 10000
