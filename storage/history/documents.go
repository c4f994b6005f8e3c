package history

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/tidemark-im/tidemark/watermark"
)

// This file maps between the vocabulary and documents. Field names are short,
// since they stand in every document.

// rowKey gives the _id of a message: the conversation's id, a zero byte, the
// seq as 8 bytes big-endian. BSON sorts binary values by their length first, so
// keys of one conversation sort by seq, and a range over them needs both ends.
func rowKey(conv watermark.ConversationID, seq watermark.Seq) bson.Binary {
	key := make([]byte, 0, len(conv)+9)
	key = append(append(key, conv...), 0)
	return bson.Binary{Data: binary.BigEndian.AppendUint64(key, uint64(seq))}
}

// memberKey gives the _id of a member. No id has a slash.
func memberKey(conv watermark.ConversationID, user watermark.UserID) string {
	return string(conv) + "/" + string(user)
}

// afterIDs sorts after every id that there can be, in byte order.
const afterIDs = "\x7f"

type messageDoc struct {
	Key        bson.Binary   `bson:"_id"`
	Conv       string        `bson:"c"`
	Seq        int64         `bson:"s"`
	Sender     string        `bson:"f"`
	ClientID   string        `bson:"i"`
	Hash       []byte        `bson:"h"`
	Kind       string        `bson:"k,omitempty"`
	SendTime   int64         `bson:"t,omitempty"`
	RecordTime int64         `bson:"rt,omitempty"`
	Device     string        `bson:"d,omitempty"`
	Mentions   []string      `bson:"m,omitempty"`
	Attributes []attribute   `bson:"a,omitempty"`
	BodyType   int32         `bson:"bt,omitempty"`
	Body       []byte        `bson:"b,omitempty"`
	Revoked    *revokedField `bson:"rv,omitempty"`
	// Gone marks a row of which retention took the content and which still
	// counts for client ids and conflicts.
	Gone bool `bson:"gone,omitempty"`
}

// attribute is a pair, since its key may be what a field name may not.
type attribute struct {
	Key   string `bson:"k"`
	Value string `bson:"v"`
}

type revokedField struct {
	By   string `bson:"by"`
	Time int64  `bson:"t"`
	At   int64  `bson:"at,omitempty"`
}

func attributesOf(m map[string]string) []attribute {
	var out []attribute
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, attribute{k, m[k]})
	}
	return out
}

func attributesFrom(list []attribute) map[string]string {
	if len(list) == 0 {
		return nil
	}
	out := make(map[string]string, len(list))
	for _, a := range list {
		out[a.Key] = a.Value
	}
	return out
}

func messageToDoc(conv watermark.ConversationID, m *watermark.Message) *messageDoc {
	d := &messageDoc{
		Key: rowKey(conv, m.Seq), Conv: string(conv), Seq: int64(m.Seq), Sender: string(m.Sender), ClientID: m.ClientID,
		Hash: m.Hash[:], Kind: m.Kind, SendTime: m.SendTime, RecordTime: m.RecordTime, Device: m.Device,
		BodyType: int32(m.BodyType), Body: m.Body,
	}
	for _, u := range m.Mentions {
		d.Mentions = append(d.Mentions, string(u))
	}
	d.Attributes = attributesOf(m.Attributes)
	if m.Revoked != nil {
		d.Revoked = &revokedField{string(m.Revoked.By), m.Revoked.Time, m.Revoked.At}
	}
	return d
}

func (d *messageDoc) message() (watermark.Message, error) {
	m := watermark.Message{
		Seq: watermark.Seq(d.Seq), Sender: watermark.UserID(d.Sender), ClientID: d.ClientID, Kind: d.Kind,
		SendTime: d.SendTime, RecordTime: d.RecordTime, Device: d.Device,
		BodyType: watermark.BodyType(d.BodyType), Body: d.Body,
	}
	if len(d.Hash) != len(m.Hash) {
		return watermark.Message{}, fmt.Errorf("message %s/%d: a hash of %d bytes: %w", d.Conv, d.Seq, len(d.Hash), errCorrupt)
	}
	copy(m.Hash[:], d.Hash)
	for _, u := range d.Mentions {
		m.Mentions = append(m.Mentions, watermark.UserID(u))
	}
	m.Attributes = attributesFrom(d.Attributes)
	if d.Revoked != nil {
		m.Revoked = &watermark.Revoked{Seq: m.Seq, By: watermark.UserID(d.Revoked.By), Time: d.Revoked.Time, At: d.Revoked.At}
	}
	return m, nil
}

type memberDoc struct {
	Key            string        `bson:"_id"`
	Conv           string        `bson:"c"`
	User           string        `bson:"u"`
	Version        int64         `bson:"v"`
	LastMembership int32         `bson:"lm,omitempty"`
	Memberships    []windowField `bson:"w,omitempty"`
	Ops            []opField     `bson:"ops,omitempty"`
	Read           int64         `bson:"r"`
	Receipt        int64         `bson:"rc"`
	ChangedAt      int64         `bson:"at"`
	Own            []int64       `bson:"own,omitempty"`
	Attributes     []attribute   `bson:"a,omitempty"`
}

type windowField struct {
	Number int32 `bson:"n"`
	Lower  int64 `bson:"lo,omitempty"`
	Upper  int64 `bson:"up,omitempty"`
}

type opField struct {
	ID   string `bson:"id"`
	Edge int64  `bson:"e"`
}

func windowFields(m *watermark.Member) []windowField {
	out := make([]windowField, len(m.Memberships))
	for i, w := range m.Memberships {
		out[i] = windowField{w.Number, int64(w.Lower), int64(w.Upper)}
	}
	return out
}

func opFields(m *watermark.Member) []opField {
	out := make([]opField, len(m.Ops))
	for i, op := range m.Ops {
		out[i] = opField{op.ID, int64(op.Edge)}
	}
	return out
}

func (d *memberDoc) row() watermark.MemberRow {
	m := watermark.Member{
		User: watermark.UserID(d.User), Version: d.Version, LastMembership: d.LastMembership,
		Read: watermark.Seq(d.Read), Receipt: watermark.Seq(d.Receipt), ChangedAt: d.ChangedAt,
		Attributes: attributesFrom(d.Attributes),
	}
	for _, w := range d.Memberships {
		m.Memberships = append(m.Memberships, watermark.Membership{Number: w.Number, Lower: watermark.Seq(w.Lower), Upper: watermark.Seq(w.Upper)})
	}
	for _, op := range d.Ops {
		m.Ops = append(m.Ops, watermark.AppliedOp{ID: op.ID, Edge: watermark.Seq(op.Edge)})
	}
	for _, s := range d.Own {
		m.Own = append(m.Own, watermark.Seq(s))
	}
	return watermark.MemberRow{Conversation: watermark.ConversationID(d.Conv), Member: m}
}

// convDoc is a conversation. Every field is merged by max, but for RepairFrom,
// which is merged by min and absent where there is none. The policy is that of
// the higher of two maxima: the highest max that came with each policy.
type convDoc struct {
	ID         string           `bson:"_id"`
	Min        int64            `bson:"mn"`
	Max        int64            `bson:"mx"`
	MaxAdvance int64            `bson:"adv"`
	MaxKeep    int64            `bson:"keep"`
	RepairNo   int64            `bson:"rn"`
	RepairFrom int64            `bson:"rf,omitempty"`
	LastTime   int64            `bson:"lt"`
	ChangedAt  int64            `bson:"at"`
	Override   int64            `bson:"po"`
	Inputs     map[string]int64 `bson:"in,omitempty"`
}

func (d *convDoc) conversation() (watermark.Conversation, error) {
	c := watermark.Conversation{
		ID: watermark.ConversationID(d.ID), Min: watermark.Seq(d.Min), Max: watermark.Seq(d.Max), LastTime: d.LastTime,
		ChangedAt: d.ChangedAt, Override: watermark.PolicyFromCode(d.Override),
		Repair: watermark.Repaired{Number: d.RepairNo, From: watermark.Seq(d.RepairFrom)},
	}
	if d.MaxKeep > 0 && d.MaxKeep >= d.MaxAdvance {
		c.Policy = watermark.KeepOnSend
	}
	for field, offset := range d.Inputs {
		p, err := parseInput(field)
		if err != nil {
			return watermark.Conversation{}, fmt.Errorf("conversation %s: %w", d.ID, err)
		}
		c.Merge(watermark.Conversation{Inputs: map[watermark.Partition]int64{p: offset}})
	}
	return c, nil
}

// inputField gives an input partition as a field name: a topic id may be any
// text, a field name may not have dots or begin with a dollar.
func inputField(p watermark.Partition) string {
	return percent(p.TopicID) + "/" + strconv.Itoa(int(p.Number))
}

func parseInput(field string) (watermark.Partition, error) {
	topic, number, ok := strings.Cut(field, "/")
	id, err1 := url.PathUnescape(topic)
	n, err2 := strconv.ParseInt(number, 10, 32)
	p := watermark.Partition{TopicID: id, Number: int32(n)}
	if !ok || err1 != nil || err2 != nil || inputField(p) != field {
		return watermark.Partition{}, fmt.Errorf("input partition %q: %w", field, errCorrupt)
	}
	return p, nil
}

// byKey sorts what a bulk is made of: two writers that touch the same documents
// in different order may wait for each other.
func byKey[T any](list []T, key func(T) string) {
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}
