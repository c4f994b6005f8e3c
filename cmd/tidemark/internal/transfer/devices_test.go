package transfer_test

import (
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/cmd/tidemark/internal/transfer"
	"github.com/tidemark-im/tidemark/storage/storagetest"
	"github.com/tidemark-im/tidemark/watermark"
)

// Who was registered before a move is notified after it.
func TestDevicesAreCopied(t *testing.T) {
	from, to := storagetest.NewMemory(), opened(t, file(t))
	put := func(h storagetest.History, u watermark.UserID, id, token string, at int64) {
		t.Helper()
		if err := h.PutDevice(t.Context(), u, watermark.Device{ID: id, Platform: watermark.FCM, Token: token, RegisteredAt: at}); err != nil {
			t.Fatal(err)
		}
	}
	copyAll := func(want int64) {
		t.Helper()
		n, err := transfer.Copy(t.Context(), transfer.Config{From: from, To: to, Page: 2})
		if err != nil || n.Devices != want {
			t.Fatalf("wrote %+v, %v, want %d devices", n, err, want)
		}
	}
	compare := func(want ...string) {
		t.Helper()
		r, err := transfer.Compare(t.Context(), transfer.Config{From: from, To: to, Page: 2})
		if err != nil || len(r.Differences) != len(want) || r.Same() != (r.From.Digest == r.To.Digest) {
			t.Fatalf("report %+v, %v", r, err)
		}
		for i, d := range r.Differences {
			if d.Kind != "device" || !strings.Contains(d.Detail, want[i]) || strings.Contains(d.Detail, "hush") {
				t.Errorf("difference %+v, want %q and no token", d, want[i])
			}
		}
	}
	for i, u := range []watermark.UserID{"alice", "alice", "bob", "carol", "dave"} {
		put(from, u, string(u)+string(rune('0'+i)), "hush"+string(rune('0'+i)), 5)
	}
	copyAll(5)
	copyAll(0)
	compare()
	put(from, "erin", "new", "hush0", 9) // alice's telephone is erin's now
	compare("alice0 of alice since 5 in the target")
	if dropped, err := from.DropDevice(t.Context(), "bob", "bob2", ""); err != nil || !dropped {
		t.Fatalf("%v, %v", dropped, err)
	}
	r, err := transfer.Compare(t.Context(), transfer.Config{From: from, To: to})
	if err != nil || r.Differing != 2 {
		t.Fatalf("report %+v, %v", r, err)
	}
	put(to, "alice", "alice0", "hush0", 12) // and alice's again, at the target
	copyAll(0)
	devices, err := to.DevicesOf(t.Context(), "alice")
	if err != nil || len(devices) != 2 || devices[0].RegisteredAt != 12 {
		t.Errorf("alice has %+v, %v", devices, err)
	}
}
