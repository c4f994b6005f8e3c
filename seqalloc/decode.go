package seqalloc

import (
	"errors"
	"fmt"

	"github.com/tidemark-im/tidemark/seqalloc/keyspace"
	"github.com/tidemark-im/tidemark/watermark"
)

// The places of an outcome's fields in a reply; see malloc.lua.
const (
	fieldVerdict = iota
	fieldSeq
	fieldReason
	fieldChanged
	fieldMin
	fieldMember
	fieldRead
	fieldReceipt
	fieldAdvance
	fieldRepaired
	fieldPolicy
	fieldOverride
	outcomeFields
)

var verdicts = map[string]watermark.Verdict{
	"accepted": watermark.Accepted,
	"again":    watermark.Again,
	"resent":   watermark.Resent,
	"known":    watermark.Known,
	"refused":  watermark.Refused,
}

// decodeReply reads the reply of malloc.lua. A reply that it cannot read is
// the program's fault. outcomes is where those of the inputs go.
func decodeReply(b *watermark.Batch, value any, outcomes []watermark.Outcome) (watermark.Allocation, error) {
	alloc, err := readReply(b, value, outcomes)
	if err != nil {
		return watermark.Allocation{}, unreadable("malloc", err)
	}
	return alloc, nil
}

func readReply(b *watermark.Batch, value any, outcomes []watermark.Outcome) (watermark.Allocation, error) {
	list, _ := value.([]any)
	if len(list) == 0 {
		return watermark.Allocation{}, fmt.Errorf("%T instead of a list", value)
	}
	rest := list[1:]
	switch list[0] {
	case "cold":
		if why, ok := first(rest).(string); ok {
			return watermark.Allocation{Temperature: watermark.Cold, Why: why}, nil
		}
	case "partial":
		alloc := watermark.Allocation{Temperature: watermark.Partial}
		var ok bool
		if alloc.Token, ok = first(rest).(string); !ok || alloc.Token == "" {
			return alloc, errors.New("no token with unknown members")
		}
		for _, u := range rest[1:] {
			s, ok := u.(string)
			if !ok {
				return alloc, fmt.Errorf("%T instead of a user", u)
			}
			alloc.Unknown = append(alloc.Unknown, watermark.UserID(s))
		}
		return alloc, nil
	case "ok":
		return readOutcomes(b, rest, outcomes)
	}
	return watermark.Allocation{}, fmt.Errorf("%v is no status", list[0])
}

func first(list []any) any {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

func readOutcomes(b *watermark.Batch, list []any, outcomes []watermark.Outcome) (watermark.Allocation, error) {
	if len(list) != 3+len(b.Inputs) {
		return watermark.Allocation{}, fmt.Errorf("%d values for %d inputs", len(list), len(b.Inputs))
	}
	maxSeq, ok := list[0].(int64)
	minSeq, ok2 := list[1].(int64)
	policy, ok3 := list[2].(int64)
	if !ok || !ok2 || !ok3 {
		return watermark.Allocation{}, fmt.Errorf("bounds %v, %v, policy %v", list[0], list[1], list[2])
	}
	alloc := watermark.Allocation{Max: watermark.Seq(maxSeq), Outcomes: outcomes}
	lowest := watermark.Seq(minSeq)
	for i, v := range list[3:] {
		o := &alloc.Outcomes[i]
		if seq, ok := v.(int64); ok {
			o.Seq, o.Min, o.Policy = watermark.Seq(seq), lowest, watermark.UnreadPolicy(policy)
			continue
		}
		if err := readOutcome(o, &b.Inputs[i], v); err != nil {
			return alloc, fmt.Errorf("outcome %d: %w", i, err)
		}
		lowest = o.Min
		if b.Inputs[i].Act == watermark.ActSetPolicy && o.Verdict != watermark.Refused {
			policy = int64(o.Policy)
		}
	}
	return alloc, nil
}

func readOutcome(o *watermark.Outcome, in *watermark.Input, v any) error {
	f, _ := v.([]any)
	if len(f) != outcomeFields {
		return fmt.Errorf("%d fields instead of %d", len(f), outcomeFields)
	}
	var strs [outcomeFields]string
	var nums [outcomeFields]int64
	for i, x := range f {
		var ok bool
		switch i {
		case fieldVerdict, fieldReason, fieldMember:
			strs[i], ok = x.(string)
		default:
			nums[i], ok = x.(int64)
		}
		if !ok {
			return fmt.Errorf("field %d is a %T", i, x)
		}
	}
	var ok bool
	if o.Verdict, ok = verdicts[strs[fieldVerdict]]; !ok {
		return fmt.Errorf("%q is no verdict", strs[fieldVerdict])
	}
	o.Reason = strs[fieldReason]
	o.Seq, o.Min = watermark.Seq(nums[fieldSeq]), watermark.Seq(nums[fieldMin])
	o.Changed = nums[fieldChanged] == 1
	o.Policy = watermark.UnreadPolicy(nums[fieldPolicy])
	if in.Act == watermark.ActSetPolicy {
		o.Override = watermark.PolicyFromCode(nums[fieldOverride])
	}
	if text := strs[fieldMember]; text != "" {
		m, err := keyspace.ParseMember(memberOf(in), text)
		if err != nil {
			return err
		}
		m.Read, m.Receipt = watermark.Seq(nums[fieldRead]), watermark.Seq(nums[fieldReceipt])
		o.Member = &m
	}
	if read := nums[fieldAdvance]; read > 0 && in.Message != nil {
		o.Advance = &watermark.ReadAdvanced{User: in.Message.Sender, Read: watermark.Seq(read)}
	}
	if nums[fieldRepaired] == 1 {
		o.Repaired = &watermark.Repaired{Number: in.Repair, From: in.Seq}
	}
	return nil
}

// memberOf names the user whose member state an input's outcome carries.
func memberOf(in *watermark.Input) watermark.UserID {
	if in.Member != nil {
		return in.Member.User
	}
	return in.User
}
