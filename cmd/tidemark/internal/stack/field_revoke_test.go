package stack_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/client"
	"github.com/tidemark-im/tidemark/client/sqlite"
	"github.com/tidemark-im/tidemark/watermark"
)

// visitor is a device with a file. It syncs and goes away again.
type visitor struct {
	*story
	store *sqlite.Store
}

func (s *story) visitor(user string) *visitor {
	s.t.Helper()
	store, err := sqlite.New(sqlite.Config{Path: filepath.Join(s.t.TempDir(), "device.db"), User: watermark.UserID(user)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := store.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return &visitor{story: s, store: store}
}

// sync gives the seqs that were handed over again.
func (p *visitor) sync() (again []int64) {
	p.t.Helper()
	c, err := client.New(client.Config{
		User: watermark.UserID(p.a), Service: p.svc, Store: p.store, List: p.store, Outbox: p.store, Logger: slog.New(slog.DiscardHandler),
		OnMessage: func(ctx context.Context, u client.Update) error {
			if u.Again {
				again = append(again, u.Message.GetSeq())
			}
			return p.store.Keep(ctx, u)
		},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := c.Run(p.ctx()); err != nil {
		p.t.Fatal(err)
	}
	return again
}

// A message that is revoked while a device is away is a tombstone on it when it
// comes back, whatever Redis and history know; and it costs that message, not
// all others.
func TestField_P3_RevokedWhileTheDeviceIsAway(t *testing.T) {
	tell(t, nil, func(s *story) {
		s.join(s.g, s.a, tidemarkv1.History_HISTORY_ALL)
		s.join(s.g, s.b, tidemarkv1.History_HISTORY_ALL)
		s.say(s.g, s.b, 1, 30)
		s.say(s.c, s.b, 1, 3)
		p := s.visitor(s.a)
		gone := map[string][]int64{}
		revoke := func(conv string, seqs ...int64) {
			s.t.Helper()
			for _, seq := range seqs {
				if _, err := s.svc.Revoke(s.ctx(), &tidemarkv1.RevokeRequest{Conversation: conv, Seq: seq, Actor: s.b}); err != nil {
					s.t.Fatal(err)
				}
				s.between()
			}
			gone[conv] = append(gone[conv], seqs...)
		}
		comesBack := func(what string, want ...int64) {
			s.t.Helper()
			if again := p.sync(); !slices.Equal(again, want) {
				s.t.Errorf("%s: pulled again %v, want %v", what, again, want)
			}
			s.between()
			for _, conv := range []string{s.g, s.c} {
				rows, err := p.store.Messages(s.ctx(), conv, 0, 100)
				if err != nil {
					s.t.Fatal(err)
				}
				var got, told []string
				for _, m := range rows {
					got = append(got, fmt.Sprintf("%d %q %t", m.GetSeq(), m.GetText(), m.GetRevoked()))
					text := "text of " + m.GetClientMessageId()
					if slices.Contains(gone[conv], m.GetSeq()) {
						text = ""
					}
					told = append(told, fmt.Sprintf("%d %q %t", m.GetSeq(), text, text == ""))
				}
				if diff := cmp.Diff(told, got); diff != "" {
					s.t.Errorf("%s: the file of %s (-want +got):\n%s", what, conv, diff)
				}
			}
		}
		comesBack("first")
		revoke(s.g, 7, 30)
		comesBack("two revoked", 7, 30)
		comesBack("nothing new")
		s.say(s.g, s.b, 31, 32)
		revoke(s.g, 2, 31)
		revoke(s.c, 1)
		comesBack("messages too", 2, 1) // the group has the later message
		if err := p.store.SaveVersion(s.ctx(), ""); err != nil {
			s.t.Fatal(err)
		}
		comesBack("the version is lost", 2, 7, 30, 31, 1)
		s.clear(s.g, s.a)
		revoke(s.g, 9)
		gone[s.g] = []int64{2, 7, 30, 31} // the application did not forget what was cleared
		comesBack("what is not seen any more")
	})
}
