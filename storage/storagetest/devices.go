package storagetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-im/tidemark/watermark"
)

var deviceTests = []test{
	{"registered devices are there", devicesAreThere},
	{"a token is its last user's", tokensMove},
	{"a device has its last token", tokensChange},
	{"a late registration takes nothing back", lateRegistration},
	{"the ones registered last are kept", devicesAreBounded},
	{"dropped", devicesAreDropped},
	{"scanned by key", devicesAreScanned},
	{"reopened, devices are there", reopenedDevices},
}

func device(id, token string, at int64) watermark.Device {
	return watermark.Device{ID: id, Platform: watermark.FCM, Token: token, RegisteredAt: at}
}

func register(t *testing.T, h History, user watermark.UserID, devices ...watermark.Device) {
	t.Helper()
	for _, d := range devices {
		if err := h.PutDevice(t.Context(), user, d); err != nil {
			t.Fatal(err)
		}
	}
}

func hasDevices(t *testing.T, h History, user watermark.UserID, want ...watermark.Device) {
	t.Helper()
	equal(t, "devices of "+string(user), must(h.DevicesOf(t.Context(), user))(t), want)
}

func devicesAreThere(t *testing.T, h History) {
	hasDevices(t, h, "alice")
	long := device("b-"+strings.Repeat("x", 60), strings.Repeat("t", watermark.MaxTokenLen), 1)
	apns := watermark.Device{ID: "A", Platform: watermark.APNs, Token: "t1", RegisteredAt: 3}
	register(t, h, "alice", long, device("a", "t1", 2), apns)
	register(t, h, "alice", device("a", "t1", 2)) // again
	register(t, h, "bob", device("a", "t2", 1))
	hasDevices(t, h, "alice", apns, device("a", "t1", 2), long)
	hasDevices(t, h, "bob", device("a", "t2", 1))
}

// Somebody else logs in on the same telephone: what is told to the one who was
// there before must not be shown on it.
func tokensMove(t *testing.T, h History) {
	register(t, h, "alice", device("a", "t1", 1), device("b", "t2", 1))
	register(t, h, "bob", device("phone", "t1", 2))
	hasDevices(t, h, "alice", device("b", "t2", 1))
	hasDevices(t, h, "bob", device("phone", "t1", 2))
	register(t, h, "bob", device("other", "t1", 2)) // at the same moment, under another id
	hasDevices(t, h, "bob", device("other", "t1", 2))
}

func tokensChange(t *testing.T, h History) {
	register(t, h, "alice", device("a", "t1", 1), device("a", "t2", 2))
	hasDevices(t, h, "alice", device("a", "t2", 2))
	register(t, h, "alice", device("a", "t3", 1)) // late: the last token stands
	hasDevices(t, h, "alice", device("a", "t2", 2))
}

func lateRegistration(t *testing.T, h History) {
	register(t, h, "alice", device("a", "t1", 5))
	register(t, h, "bob", device("b", "t1", 4))
	hasDevices(t, h, "alice", device("a", "t1", 5))
	hasDevices(t, h, "bob")
	register(t, h, "alice", device("a", "t1", 9))
	hasDevices(t, h, "alice", device("a", "t1", 9))
}

func devicesAreBounded(t *testing.T, h History) {
	var all []watermark.Device
	for i := range watermark.MaxDevices + 3 {
		all = append(all, device(fmt.Sprintf("d%02d", i), fmt.Sprint("t", i), int64(100+i)))
	}
	register(t, h, "alice", all[5], all[0])
	register(t, h, "bob", device("x", "other", 1))
	register(t, h, "alice", all...)
	hasDevices(t, h, "alice", all[3:]...)
	hasDevices(t, h, "bob", device("x", "other", 1))
}

func devicesAreDropped(t *testing.T, h History) {
	drop := func(user watermark.UserID, id, token string, want bool) {
		t.Helper()
		equal(t, fmt.Sprintf("drop %s/%s/%s", user, id, token), must(h.DropDevice(t.Context(), user, id, token))(t), want)
	}
	register(t, h, "alice", device("a", "t1", 1), device("b", "t2", 1))
	drop("bob", "a", "", false)
	drop("alice", "c", "", false)
	drop("alice", "a", "t9", false) // it was registered anew meanwhile
	drop("alice", "a", "t1", true)
	drop("alice", "a", "t1", false)
	hasDevices(t, h, "alice", device("b", "t2", 1))
	drop("alice", "b", "", true)
	hasDevices(t, h, "alice")
}

func devicesAreScanned(t *testing.T, h History) {
	var want []watermark.DeviceRow
	for i := range 25 {
		r := watermark.DeviceRow{User: watermark.UserID(fmt.Sprint("u", i%3)), Device: device(fmt.Sprint("d", i), fmt.Sprint("t", i), int64(i))}
		want = append(want, r)
		register(t, h, r.User, r.Device)
	}
	slices.SortFunc(want, func(a, b watermark.DeviceRow) int { return compareDeviceKeys(a.Device.Key(), b.Device.Key()) })
	for _, limit := range []int{1, 7, 25, watermark.MaxPage} {
		got, _ := paged(t, func(last *watermark.DeviceRow) []watermark.DeviceRow {
			var after watermark.DeviceKey
			if last != nil {
				after = last.Device.Key()
			}
			return must(h.ScanDevices(t.Context(), after, limit))(t)
		})
		equal(t, fmt.Sprintf("devices by %d", limit), got, want)
	}
	equal(t, "none", must(h.ScanDevices(t.Context(), watermark.DeviceKey{}, 0))(t), []watermark.DeviceRow(nil))
}

func reopenedDevices(t *testing.T, h History) {
	r, ok := h.(Reopener)
	if !ok {
		return // what lives in memory ends with its process
	}
	register(t, h, "alice", device("a", "t1", 1))
	hasDevices(t, r.Reopen(t), "alice", device("a", "t1", 1))
}
