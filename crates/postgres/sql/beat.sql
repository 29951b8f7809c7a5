-- A beat: renews all leases of a node, and looks, as look.sql does. The look is of the moment before the beat.
-- Binds: $1 integer node, $2 bigint generation, $3 bigint beat, $4 integer[] unreachable. Lock: the node's row.
-- Repeats the look of look.sql, because a file holds one whole statement.
-- One row; is_registered is false if the node is not registered with this generation.
WITH me AS (
    UPDATE nodes SET beat = $3, unreachable = $4, beat_at = clock_timestamp()
    WHERE id = $1 AND generation = $2 AND state <> 'left'
    RETURNING id
)
SELECT EXISTS (SELECT FROM me) AS is_registered,
       s.incarnation, c.version, n.*, l.*
FROM store AS s, clusters AS c,
     (SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(address), '{}') AS addresses,
             coalesce(array_agg(weight), '{}') AS weights, coalesce(array_agg(build), '{}') AS builds,
             coalesce(array_agg(protocol_min), '{}') AS protocol_mins,
             coalesce(array_agg(protocol_max), '{}') AS protocol_maxs,
             coalesce(array_agg(generation), '{}') AS generations, coalesce(array_agg(beat), '{}') AS beats,
             coalesce(array_agg(state), '{}') AS states, coalesce(array_agg(held), '{}') AS helds,
             coalesce(array_agg(array_to_string(unreachable, ',')), '{}') AS unreachables,
             coalesce(array_agg(started), '{}') AS starteds, coalesce(array_agg(beat_at), '{}') AS beat_ats
      FROM nodes WHERE state <> 'left') AS n,
     (SELECT array_agg(k.log ORDER BY k.log) AS logs, array_agg(k.owner ORDER BY k.log) AS owners,
             array_agg(k.generation ORDER BY k.log) AS owner_generations, array_agg(k.epoch ORDER BY k.log) AS epochs,
             array_agg(k.next_owner ORDER BY k.log) AS next_owners, array_agg(k.pinned ORDER BY k.log) AS pinneds,
             array_agg(k.frozen ORDER BY k.log) AS frozens, array_agg(k.since ORDER BY k.log) AS sinces
      FROM leases AS k) AS l
