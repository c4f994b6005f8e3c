package storagetest

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

// PutDevice implements History.
func (h *Memory) PutDevice(_ context.Context, user watermark.UserID, d watermark.Device) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old, ok := h.devices[d.Key()]; ok && old.Device.RegisteredAt > d.RegisteredAt {
		return nil
	}
	h.devices[d.Key()] = watermark.DeviceRow{User: user, Device: d}
	for _, s := range watermark.SurplusDevices(h.devicesLocked(user)) {
		delete(h.devices, s.Key())
	}
	return nil
}

// DropDevice implements History.
func (h *Memory) DropDevice(_ context.Context, user watermark.UserID, id, token string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := len(h.devices)
	maps.DeleteFunc(h.devices, func(_ watermark.DeviceKey, r watermark.DeviceRow) bool {
		return r.User == user && r.Device.ID == id && (token == "" || r.Device.Token == token)
	})
	return len(h.devices) < before, nil
}

// DevicesOf implements History.
func (h *Memory) DevicesOf(_ context.Context, user watermark.UserID) ([]watermark.Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.devicesLocked(user), nil
}

func (h *Memory) devicesLocked(user watermark.UserID) []watermark.Device {
	var out []watermark.Device
	for _, r := range h.devices {
		if r.User == user {
			out = append(out, r.Device)
		}
	}
	slices.SortFunc(out, func(a, b watermark.Device) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// ScanDevices implements History.
func (h *Memory) ScanDevices(_ context.Context, after watermark.DeviceKey, limit int) ([]watermark.DeviceRow, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(h.devices), compareDeviceKeys)
	var out []watermark.DeviceRow
	for _, k := range keys {
		if compareDeviceKeys(k, after) > 0 && len(out) < min(limit, watermark.MaxPage) {
			out = append(out, h.devices[k])
		}
	}
	return out, nil
}

func compareDeviceKeys(a, b watermark.DeviceKey) int { return slices.Compare(a[:], b[:]) }
