package embedded

// query names a prepared statement.
type query string

// Lists are handed over as one JSON array, so that a statement is prepared once
// for lists of any length. CROSS JOIN makes SQLite go through the list and look
// each entry up, never the other way around.
const (
	qInsertMessage query = "insert message"
	qInsertPlain   query = "insert plain message"
	qStanding      query = "standing messages"
	qRevoke        query = "revoke"
	qBounds        query = "bounds"
	qHighest       query = "highest rows"
	qMember        query = "member"
	qPutMember     query = "put member"
	qAddOwn        query = "add own"
	qTrimOwn       query = "trim own"
	qOwnBound      query = "own bound"
	qPutMarks      query = "put marks"
	qPutConv       query = "put conversation"
	qPutInput      query = "put input"
	qPutPosition   query = "put position"
	qDelete        query = "delete messages"
	qHollow        query = "hollow messages"

	qConvs       query = "conversations"
	qConvsAfter  query = "conversations after"
	qInputs      query = "inputs"
	qSizes       query = "sizes"
	qAllMembers  query = "all members"
	qNamed       query = "named members"
	qRoster      query = "roster"
	qMemberships query = "memberships"
	qActivity    query = "activity"
	qSent        query = "sent"
	qMessages    query = "messages"
	qRows        query = "rows"
	qMentions    query = "mentions"
	qRevoked     query = "revoked"

	qScanConvs   query = "scan conversations"
	qScanRows    query = "scan messages"
	qScanMembers query = "scan members"
	qCount       query = "count"
	qPositions   query = "positions"

	qPutDevice   query = "put device"
	qCutDevice   query = "cut device"
	qDropDevice  query = "drop device"
	qOwnDevices  query = "own devices"
	qDevices     query = "devices"
	qScanDevices query = "scan devices"
)

const convColumns = "c.id, c.min, c.max, c.policy, c.repair_number, c.repair_from, c.last_time, c.changed_at, c.override"

const messageColumns = `m.seq, m.sender, m.client_id, m.hash, m.kind, m.send_time, m.record_time, m.device, m.revoked_by, m.revoked_at,
	m.revoked_offset,	m.body_type, m.mentions, m.attributes, m.body`

const memberColumns = "m.conversation, m.user, m.version, m.last_membership, m.read, m.receipt, m.changed_at, m.own_count, m.memberships, m.ops, m.attributes"

// wholeMember also has the own messages, in the same statement: read apart from
// the read watermark, a write in between could leave a member with neither.
const wholeMember = memberColumns + `, CASE WHEN m.own_count > 0 THEN (SELECT json_group_array(o.seq ORDER BY o.seq)
	FROM own o WHERE o.conversation = m.conversation AND o.user = m.user) END`

const deviceColumns = "user, device, platform, token, registered_at"

var writes = map[query]string{
	qPutDevice: `INSERT INTO devices AS d (key, user, device, platform, token, registered_at) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET user = excluded.user, device = excluded.device, registered_at = excluded.registered_at
		WHERE excluded.registered_at >= d.registered_at`,
	qCutDevice:  `DELETE FROM devices WHERE key = ?`,
	qDropDevice: `DELETE FROM devices WHERE user = ?1 AND device = ?2 AND (?3 = '' OR token = ?3)`,
	qOwnDevices: `SELECT ` + deviceColumns + ` FROM devices WHERE user = ?`,
	qStanding: `SELECT j.key, m.sender, m.client_id, m.hash FROM json_each(?) j
		CROSS JOIN messages m ON m.conversation = j.value ->> 0 AND m.seq = j.value ->> 1`,
	qHighest: `SELECT j.value, (SELECT max(m.seq) FROM messages m WHERE m.conversation = j.value) FROM json_each(?) j`,
	// The first revoke stands, so that a log that is read again changes nothing.
	qRevoke: `UPDATE messages SET body_type = 0, body = NULL, mentions = NULL, attributes = NULL, revoked_by = ?, revoked_at = ?,
		revoked_offset = ?
		WHERE conversation = ? AND seq = ? AND revoked_at IS NULL`,
	qBounds: `SELECT c.id, c.min, c.max FROM json_each(?) j CROSS JOIN conversations c ON c.id = j.value`,
	qMember: `SELECT ` + memberColumns + `, NULL FROM members m WHERE m.conversation = ? AND m.user = ?`,
	qPutMember: `INSERT INTO members (conversation, user, version, last_membership, read, receipt, changed_at, own_count, memberships, ops, attributes)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET version = excluded.version,
		last_membership = excluded.last_membership, read = excluded.read, receipt = excluded.receipt,
		changed_at = excluded.changed_at, own_count = excluded.own_count, memberships = excluded.memberships, ops = excluded.ops,
		attributes = excluded.attributes`,
	qAddOwn:   `INSERT INTO own (conversation, user, seq) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`,
	qTrimOwn:  `DELETE FROM own WHERE conversation = ? AND user = ? AND seq <= ?`,
	qOwnBound: `SELECT seq FROM own WHERE conversation = ? AND user = ? ORDER BY seq DESC LIMIT 1 OFFSET ?`,
	qPutPosition: `INSERT INTO positions AS p (topic, topic_id, partition, next) VALUES (?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET next = max(p.next, excluded.next)`,
	qDelete: `DELETE FROM messages WHERE conversation = ?1 AND seq IN (SELECT seq FROM messages
		WHERE conversation = ?1 AND seq < ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4)`,
	qHollow: `UPDATE messages SET gone = 1, body_type = 0, body = NULL, mentions = NULL, attributes = NULL
		WHERE conversation = ?1 AND seq IN (SELECT seq FROM messages
		WHERE conversation = ?1 AND seq < ?2 AND seq > ?3 AND gone = 0 ORDER BY seq LIMIT ?4)`,
}

var reads = map[query]string{
	qConvs: `SELECT ` + convColumns + `
		FROM json_each(?) j CROSS JOIN conversations c ON c.id = j.value`,
	// From id to id, each found by one look into either tree: a conversation of a
	// million messages costs no more than an empty one.
	qConvsAfter: `WITH RECURSIVE walk (id) AS (
		SELECT ?1 UNION ALL
		SELECT (SELECT min(id) FROM (SELECT min(c.id) AS id FROM conversations c WHERE c.id > walk.id
			UNION ALL SELECT min(m.conversation) FROM messages m WHERE m.conversation > walk.id))
		FROM walk WHERE walk.id IS NOT NULL LIMIT ?2 + 1)
		SELECT id FROM walk WHERE id IS NOT NULL LIMIT ?2 OFFSET 1`,
	qInputs: `SELECT i.conversation, i.topic, i.partition, i.offset
		FROM json_each(?) j CROSS JOIN inputs i ON i.conversation = j.value`,
	// Counting stops one above the bound, so a large group costs no more than a
	// small one.
	qSizes: `SELECT j.value, (SELECT count(*) FROM (SELECT 1 FROM members m WHERE m.conversation = j.value LIMIT ?2))
		FROM json_each(?1) j`,
	qAllMembers: `SELECT ` + wholeMember + ` FROM json_each(?) j CROSS JOIN members m ON m.conversation = j.value`,
	qNamed: `SELECT ` + wholeMember + ` FROM json_each(?) j
		CROSS JOIN members m ON m.conversation = j.value ->> 0 AND m.user = j.value ->> 1`,
	qRoster: `SELECT ` + wholeMember + ` FROM members m WHERE m.conversation = ? AND m.user > ? ORDER BY m.user LIMIT ?`,
	qMemberships: `SELECT ` + wholeMember + ` FROM members m INDEXED BY members_by_user
		WHERE m.user = ? AND m.conversation > ? ORDER BY m.conversation LIMIT ?`,
	// The index has both columns, so no member row is read. A row for each would
	// take twice the time: half of it is handing them over.
	qActivity: `SELECT coalesce(group_concat(x), '') FROM (SELECT m.conversation || ' ' || coalesce(c.last_time, 0) AS x
		FROM members m INDEXED BY members_by_user LEFT JOIN conversations c ON c.id = m.conversation
		WHERE m.user = ? AND m.conversation > ? ORDER BY m.conversation LIMIT ?)`,
	qSent: `SELECT m.conversation, m.seq, m.sender, m.client_id, m.hash FROM json_each(?) j
		CROSS JOIN messages m ON m.conversation = j.value ->> 0 AND m.seq > j.value ->> 1`,
	qMessages: `SELECT ` + messageColumns + ` FROM messages m
		WHERE m.conversation = ? AND m.seq BETWEEN ? AND ? AND m.gone = 0 ORDER BY m.seq LIMIT ?`,
	qRows: `SELECT j.key, ` + messageColumns + ` FROM json_each(?) j
		CROSS JOIN messages m ON m.conversation = j.value ->> 0 AND m.seq = j.value ->> 1 AND m.gone = 0`,
	// The list within the list stops at its bound, whatever lies behind it.
	qMentions: `SELECT j.key, (SELECT json_group_array(s.seq) FROM (SELECT x.seq FROM mentions x
		WHERE x.conversation = j.value ->> 0 AND x.user = j.value ->> 1 AND x.seq BETWEEN j.value ->> 2 AND j.value ->> 3
		ORDER BY x.seq LIMIT ?2) s) FROM json_each(?1) j`,
	qRevoked: `SELECT j.key, (SELECT json_group_array(s.seq) FROM (SELECT x.seq FROM messages x INDEXED BY revokes_by_offset
		WHERE x.conversation = j.value ->> 0 AND x.revoked_offset >= j.value ->> 1
		ORDER BY x.revoked_offset LIMIT ?2) s) FROM json_each(?1) j`,
	qScanConvs: `SELECT ` + convColumns + ` FROM conversations c WHERE c.id > ? ORDER BY c.id LIMIT ?`,
	qScanRows: `SELECT m.conversation, m.gone, ` + messageColumns + ` FROM messages m
		WHERE (m.conversation, m.seq) > (?1, ?2) AND m.conversation <= ?3 ORDER BY m.conversation, m.seq LIMIT ?4`,
	qScanMembers: `SELECT ` + wholeMember + ` FROM members m INDEXED BY members_by_user
		WHERE (m.user, m.conversation) > (?1, ?2) ORDER BY m.user, m.conversation LIMIT ?3`,
	// Messages are not counted: that would read all of them, bodies too.
	qCount:       `SELECT count(*), coalesce(sum(max(0, max - max(min, 1) + 1)), 0), (SELECT count(*) FROM members) FROM conversations`,
	qDevices:     `SELECT ` + deviceColumns + ` FROM devices WHERE user = ? ORDER BY device`,
	qScanDevices: `SELECT ` + deviceColumns + ` FROM devices WHERE key > ? ORDER BY key LIMIT ?`,

	qPositions: `SELECT topic, topic_id, partition, next FROM positions ORDER BY topic, topic_id, partition`,
}
