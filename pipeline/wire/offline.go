package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-im/tidemark/api/convert"
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/fault"
	"github.com/tidemark-im/tidemark/watermark"
)

// TopicOffline is the topic of what is to be told to absent users, before the
// deployment's prefix.
const TopicOffline = "toOfflinePush"

// HeaderEndpoint names the one endpoint that a record of toOfflinePush is for;
// absent: all of them. A notification that could not be delivered keeps it in
// its dead letter, so that a replay bothers no other endpoint.
const HeaderEndpoint = "tidemark-endpoint"

// Bounds of an Offline.
const (
	// MaxOfflineUsers bounds the users of one record.
	MaxOfflineUsers = 1000
	// MaxOfflineText bounds each of its texts, in bytes.
	MaxOfflineText = 1024
)

// Attributes of a message that say what is shown of it to an absent user, where
// its body is not to be shown or cannot be.
const (
	AttributePushTitle = "push_title"
	AttributePushBody  = "push_body"
)

// Offline is a message for users who had no connection.
type Offline struct {
	Conversation watermark.ConversationID
	Seq          watermark.Seq
	Sender       watermark.UserID
	ClientID     string
	Kind         string
	// Text is the beginning of a text body; Title and Body are what the message
	// wants to be shown instead.
	Text, Title, Body string
	RecordTime        time.Time
	Users             []watermark.UserID
	// Mentions are those of Users whom the message mentions.
	Mentions []watermark.UserID
}

// OfflineOf gives what absent users are told of m. Its users are still to be set.
func OfflineOf(c watermark.ConversationID, m *watermark.Message) Offline {
	out := Offline{
		Conversation: c, Seq: m.Seq, Sender: m.Sender, ClientID: m.ClientID, Kind: m.Kind, RecordTime: timeOf(m.RecordTime),
		Title: beginning(m.Attributes[AttributePushTitle]), Body: beginning(m.Attributes[AttributePushBody]),
	}
	if m.BodyType == watermark.BodyText {
		out.Text = beginning(string(m.Body))
	}
	return out
}

// For sets whom o is for, and which of them the message mentions.
func (o Offline) For(users, mentions []watermark.UserID) Offline {
	o.Users, o.Mentions = users, nil
	for _, u := range mentions {
		if slices.Contains(users, u) && !slices.Contains(o.Mentions, u) {
			o.Mentions = append(o.Mentions, u)
		}
	}
	return o
}

// beginning gives at most MaxOfflineText bytes of s, cut between characters.
func beginning(s string) string {
	if len(s) <= MaxOfflineText {
		return s
	}
	n := MaxOfflineText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// EncodeOffline gives o as a record. endpoint names the one that it is for;
// empty: all. A value that DecodeOffline would refuse is a fault.Fatal.
func EncodeOffline(o Offline, endpoint string) (Out, error) {
	api := &v1.OfflinePush{
		Conversation: string(o.Conversation), Seq: int64(o.Seq), Sender: string(o.Sender), ClientMessageId: o.ClientID,
		Kind: o.Kind, Text: o.Text, Title: o.Title, Body: o.Body, RecordTimeMs: timeMs(o.RecordTime),
		Users: plain(o.Users), Mentions: plain(o.Mentions),
	}
	_, err := offlineOf(api)
	if err == nil && strings.Contains(endpoint, "/") {
		err = fmt.Errorf("endpoint %s has a '/'", clip(endpoint, 80))
	}
	var value []byte
	if err == nil {
		value, err = proto.Marshal(api)
	}
	if err != nil {
		return Out{}, fault.New(fault.Fatal, ReasonUnencodable, fmt.Errorf("encode offline push of %s: %w", o.Conversation, err))
	}
	out := Out{Partition: -1, Key: string(o.Conversation), Value: value}
	if endpoint != "" {
		out.Headers = []Header{{HeaderEndpoint, []byte(endpoint)}}
	}
	return out, nil
}

// DecodeOffline reads a record of toOfflinePush. The error is a fault.Poison.
func DecodeOffline(r Record) (Offline, error) {
	api := new(v1.OfflinePush)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(r.Value, api); err != nil {
		return Offline{}, undecodable(fmt.Errorf("offline push: %w", err))
	}
	o, err := offlineOf(api)
	if err != nil {
		return Offline{}, invalid(fmt.Errorf("offline push: %w", err))
	}
	return o, nil
}

func offlineOf(api *v1.OfflinePush) (Offline, error) {
	o := Offline{
		Seq: watermark.Seq(api.GetSeq()), ClientID: api.GetClientMessageId(), Kind: api.GetKind(),
		Text: api.GetText(), Title: api.GetTitle(), Body: api.GetBody(), RecordTime: timeOf(api.GetRecordTimeMs()),
	}
	var errs []error
	check := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	o.Conversation, err = watermark.ParseConversationID(api.GetConversation())
	check(err)
	o.Sender, err = watermark.ParseUserID(api.GetSender())
	check(err)
	check(watermark.CheckKey("client message id", o.ClientID))
	if o.Seq < 1 || o.Seq > watermark.MaxSeq {
		check(fmt.Errorf("seq %d is not within 1..%d", o.Seq, watermark.MaxSeq))
	}
	if t := api.GetRecordTimeMs(); t < 0 || t > convert.MaxTime {
		check(fmt.Errorf("time %d is not within 0..%d", t, int64(convert.MaxTime)))
	}
	if len(o.Kind) > watermark.MaxIDLen {
		check(fmt.Errorf("kind has %d bytes, at most %d are allowed", len(o.Kind), watermark.MaxIDLen))
	}
	for name, s := range map[string]string{"text": o.Text, "title": o.Title, "body": o.Body} {
		if len(s) > MaxOfflineText {
			check(fmt.Errorf("%s has %d bytes, at most %d are allowed", name, len(s), MaxOfflineText))
		}
	}
	if n := len(api.GetUsers()); n < 1 || n > MaxOfflineUsers || len(api.GetMentions()) > n {
		return Offline{}, errors.Join(append(errs, fmt.Errorf("%d users, of whom %d are mentioned: must be 1..%d, and no more are mentioned than there are", n, len(api.GetMentions()), MaxOfflineUsers))...)
	}
	users := func(ids []string) []watermark.UserID {
		var out []watermark.UserID
		for _, s := range ids {
			u, err := watermark.ParseUserID(s)
			check(err)
			out = append(out, u)
		}
		return out
	}
	o.Users, o.Mentions = users(api.GetUsers()), users(api.GetMentions())
	return o, errors.Join(errs...)
}

func plain(users []watermark.UserID) []string {
	var out []string
	for _, u := range users {
		out = append(out, string(u))
	}
	return out
}
