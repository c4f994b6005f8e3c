package stack_test

import (
	"testing"
)

func TestField_S1_CacheLostOnAQuietConversation(t *testing.T) {
	r := startAll(t, nil)
	const c = "single:A:B"
	if seq := r.send(c, "B", "m1"); seq != 1 {
		t.Fatalf("first seq = %d", seq)
	}
	r.read("A", c, 1)
	r.settle()
	r.forget(c)
	if w := r.marks("A", c); w.GetMaxSeq() != 1 || w.GetReadSeq() != 1 || w.GetUnread() != 0 {
		t.Errorf("after the loss: %v", w)
	}
	if seq := r.send(c, "B", "m2"); seq != 2 {
		t.Errorf("seq after the loss = %d, want 2", seq)
	}
	wantSeqs(t, r.pullAll("A", c, 1, 2), 1, 2)
}
