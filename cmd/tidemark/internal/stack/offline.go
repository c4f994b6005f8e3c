package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tidemark-im/tidemark/consumers/tooffline"
	"github.com/tidemark-im/tidemark/consumers/tooffline/apns"
	"github.com/tidemark-im/tidemark/consumers/tooffline/fcm"
	"github.com/tidemark-im/tidemark/consumers/tooffline/webhook"
	"github.com/tidemark-im/tidemark/consumers/topush"
	"github.com/tidemark-im/tidemark/internal/config"
	"github.com/tidemark-im/tidemark/pipeline"
	"github.com/tidemark-im/tidemark/storage/hot"
	"github.com/tidemark-im/tidemark/storage/truth"
	"github.com/tidemark-im/tidemark/watermark"
)

// RolesFor lists the roles that a message passes through in a deployment of one
// process: Roles, and the one that tells absent users where there are endpoints.
func RolesFor(cfg config.Config) []Role {
	if len(cfg.ToOffline.Endpoints()) == 0 {
		return Roles()
	}
	return append(Roles(), ToOffline)
}

// offlineGroup gives the consumer group of an endpoint.
func offlineGroup(prefix, endpoint string) string {
	return groupName(prefix, ToOffline) + "-" + endpoint
}

// offline gives where toPush leaves what absent users are to be told of; nil:
// nowhere.
func (s *Stack) offline() (topush.Offline, error) {
	if !s.cfg.ToOffline.Enabled {
		return nil, nil
	}
	return topush.NewOfflineLog(topush.OfflineLog{Log: s.producer, Topic: s.kafka.Topics().Offline, Presence: presence{s.hot}})
}

// presence tells who is connected, as the gateways have said.
type presence struct{ hot *hot.Hot }

func (p presence) Online(ctx context.Context, users []watermark.UserID) (map[watermark.UserID]bool, error) {
	where, err := p.hot.Presence(ctx, users, time.Now())
	if err != nil {
		return nil, err
	}
	on := make(map[watermark.UserID]bool)
	for i, w := range where {
		if len(w.Devices) > 0 {
			on[users[i]] = true
		}
	}
	return on, nil
}

// endpoint is one that absent users are told by.
type endpoint struct {
	name    string
	sender  tooffline.Sender
	devices tooffline.Devices // nil: it needs none
}

// endpoints makes those that are set.
func (s *Stack) endpoints() (out []endpoint, err error) {
	t := s.cfg.ToOffline
	for _, name := range t.Endpoints() {
		e := endpoint{name: name}
		switch name {
		case config.EndpointFCM:
			e.sender, err = s.fcm(t.FCM)
			e.devices = devices{s.history, watermark.FCM}
		case config.EndpointAPNs:
			e.sender, err = s.apns(t.APNs)
			e.devices = devices{s.history, watermark.APNs}
		default:
			e.sender, err = s.webhook(t.Webhook)
		}
		if err != nil {
			return nil, fmt.Errorf("tooffline: %w", err)
		}
		out = append(out, e)
	}
	return out, nil
}

func (s *Stack) webhook(w config.Webhook) (tooffline.Sender, error) {
	text, err := w.SecretText()
	if err != nil {
		return nil, err
	}
	secret, err := webhook.ParseSecret(text)
	if err != nil {
		return nil, err
	}
	sender, err := webhook.New(webhook.Config{URL: w.URL, KeyID: w.KeyID, Secret: secret, Connections: s.cfg.ToOffline.Concurrency})
	if err != nil {
		return nil, err
	}
	s.onClose(sender.Close)
	return sender, nil
}

func (s *Stack) fcm(f config.FCM) (tooffline.Sender, error) {
	key, err := os.ReadFile(f.CredentialsFile)
	if err != nil {
		return nil, fmt.Errorf("fcm.credentials_file: %w", err)
	}
	sender, err := fcm.New(fcm.Config{Credentials: key, Project: f.Project, URL: f.URL})
	if err != nil {
		return nil, err
	}
	s.onClose(sender.Close)
	return sender, nil
}

func (s *Stack) apns(a config.APNs) (tooffline.Sender, error) {
	key, err := os.ReadFile(a.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("apns.key_file: %w", err)
	}
	sender, err := apns.New(apns.Config{Key: key, KeyID: a.KeyID, TeamID: a.TeamID, Topic: a.Topic, URL: a.URL})
	if err != nil {
		return nil, err
	}
	s.onClose(sender.Close)
	return sender, nil
}

// devices are those of one vendor.
type devices struct {
	history  historyStore
	platform watermark.Platform
}

func (d devices) Devices(ctx context.Context, user watermark.UserID) ([]watermark.Device, error) {
	all, err := d.history.DevicesOf(ctx, user)
	return slices.DeleteFunc(all, func(x watermark.Device) bool { return x.Platform != d.platform }), err
}

func (d devices) Forget(ctx context.Context, user watermark.UserID, x watermark.Device) error {
	_, err := d.history.DropDevice(ctx, user, x.ID, x.Token)
	return err
}

// assembleOffline makes a worker and a consumer group for each endpoint, so that
// one that hangs holds up nothing but its own offsets.
func (s *Stack) assembleOffline() error {
	t := s.cfg.ToOffline
	if !t.Enabled {
		return errors.New("tooffline.enabled is not set, so there is nothing to read")
	}
	all, err := s.endpoints()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no endpoint is set (tooffline.webhook.url, tooffline.fcm.credentials_file, tooffline.apns.key_file)")
	}
	for _, e := range all {
		delay := t.Delay
		if delay == 0 {
			delay = -1
		}
		w, err := tooffline.New(tooffline.Config{
			Endpoint: e.name, Sender: e.sender, Devices: e.devices, Store: offlineStore{s.truth},
			DeadLetters: s.producer, DeadLetter: s.kafka.Topics().DeadLetter,
			Delay: delay, Preview: t.Preview, MaxAge: t.MaxAge, Tries: t.Tries, Concurrency: t.Concurrency, Timeout: t.Timeout, MaxPending: t.MaxPending,
			FirstPause: t.FirstPause, LongestPause: t.LongestPause, MaxRetryAfter: t.MaxRetryAfter, BreakerAfter: t.BreakerAfter, BreakerPause: t.BreakerPause,
			Tracer: s.tracing.Tracer(), Logger: s.cfg.Logger, Registerer: s.cfg.Registry,
		})
		if err != nil {
			return err
		}
		p, err := s.offlinePart(e.name, w)
		if err != nil {
			return err
		}
		s.parts = append(s.parts, p)
	}
	return nil
}

func (s *Stack) offlinePart(name string, w *tooffline.Worker) (*part, error) {
	g, err := pipeline.NewGroup(pipeline.GroupConfig{
		Config: s.kafka, Group: offlineGroup(s.cfg.Kafka.TopicPrefix, name), Topic: s.kafka.Topics().Offline, DeadLetters: s.producer,
		OnLost:   pipeline.OnLost(s.cfg.Kafka.OnLostOffsets),
		NewStage: func(ctx context.Context, c pipeline.Claim) (pipeline.Stage, error) { return w.Stage(ctx, c.Partition) },
	})
	if err != nil {
		return nil, err
	}
	title := string(ToOffline) + " " + name
	s.cfg.Health.Add(title, func() error {
		// A partition that waits for an endpoint is seen in metrics. It must not
		// take a process that answers clients out of service.
		switch st := g.State(); {
		case !st.Member:
			return errors.New(st.Why)
		case st.Trouble != "":
			return errors.New("kafka: " + st.Trouble)
		}
		return nil
	})
	return newPart(title, func(ctx context.Context) error {
		run, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		// First nothing begins any more, then the group is told to go: its last
		// flush waits for what is under way.
		context.AfterFunc(ctx, func() {
			w.Drain()
			stop()
		})
		return g.Run(run)
	}), nil
}

// offlineStore tells what users have seen, from history and the tail: whatever
// was appended before it is asked.
type offlineStore struct{ truth *truth.Truth }

func (o offlineStore) Look(ctx context.Context, conv watermark.ConversationID, user watermark.UserID, seq watermark.Seq) (tooffline.Standing, error) {
	states, err := o.truth.Load(ctx, []watermark.Want{{Conversation: conv, Users: []watermark.UserID{user}}})
	if err != nil {
		return tooffline.Standing{}, err
	}
	out := tooffline.Standing{Conversation: states[0].Conversation, Member: states[0].Members[user]}
	out.Member.User = user
	rows, err := o.truth.Messages(ctx, conv, watermark.Interval{First: seq, Last: seq})
	if err != nil {
		return tooffline.Standing{}, err
	}
	out.Revoked = len(rows) == 1 && rows[0].Revoked != nil
	return out, nil
}

func (o offlineStore) Badge(ctx context.Context, user watermark.UserID) (n int64, err error) {
	list, err := o.truth.List(ctx, user)
	if err != nil {
		return 0, err
	}
	for i := range list.Entries {
		l := &list.Entries[i]
		if l.InList() && l.Member.Attributes[watermark.AttributeMuted] == "" {
			n += watermark.Unread(l.Member.Visible(l.Conversation.Min, l.Conversation.Max), l.Member.Read, l.Member.Own)
		}
	}
	return n, nil
}
