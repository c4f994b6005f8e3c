package convert

import (
	v1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/watermark"
)

// RangeToAPI gives an interval as a range; nil for nil.
func RangeToAPI(i *watermark.Interval) *v1.Range {
	if i == nil {
		return nil
	}
	return &v1.Range{Begin: int64(i.First), End: int64(i.Last)}
}

// RangesToAPI gives intervals as ranges.
func RangesToAPI(v watermark.Intervals) []*v1.Range {
	if len(v) == 0 {
		return nil
	}
	out := make([]*v1.Range, len(v))
	for i := range v {
		out[i] = RangeToAPI(&v[i])
	}
	return out
}

// PolicyToAPI gives an unread policy's name on the wire.
func PolicyToAPI(p watermark.UnreadPolicy) v1.UnreadPolicy {
	if p == watermark.KeepOnSend {
		return v1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND
	}
	return v1.UnreadPolicy_UNREAD_POLICY_ADVANCE_ON_SEND
}

// PolicyFromAPI is the way back; unspecified means AdvanceOnSend.
func PolicyFromAPI(p v1.UnreadPolicy) (watermark.UnreadPolicy, error) {
	switch p {
	case v1.UnreadPolicy_UNREAD_POLICY_UNSPECIFIED, v1.UnreadPolicy_UNREAD_POLICY_ADVANCE_ON_SEND:
		return watermark.AdvanceOnSend, nil
	case v1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND:
		return watermark.KeepOnSend, nil
	}
	return 0, unknown("policy", int32(p))
}

// ChoiceToAPI gives what a conversation says of the policy as its name on the
// wire.
func ChoiceToAPI(c watermark.PolicyChoice) v1.UnreadPolicy {
	switch c {
	case watermark.ChooseAdvance:
		return v1.UnreadPolicy_UNREAD_POLICY_ADVANCE_ON_SEND
	case watermark.ChooseKeep:
		return v1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND
	}
	return v1.UnreadPolicy_UNREAD_POLICY_UNSPECIFIED
}

// ChoiceFromAPI is the way back; unspecified means the deployment's.
func ChoiceFromAPI(p v1.UnreadPolicy) (watermark.PolicyChoice, error) {
	switch p {
	case v1.UnreadPolicy_UNREAD_POLICY_UNSPECIFIED:
		return watermark.ChooseDefault, nil
	case v1.UnreadPolicy_UNREAD_POLICY_ADVANCE_ON_SEND:
		return watermark.ChooseAdvance, nil
	case v1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND:
		return watermark.ChooseKeep, nil
	}
	return 0, unknown("policy", int32(p))
}

// HistoryToAPI gives what a Join shows as its name on the wire.
func HistoryToAPI(h watermark.History) v1.History {
	switch h {
	case watermark.HistoryAll:
		return v1.History_HISTORY_ALL
	case watermark.HistoryFrom:
		return v1.History_HISTORY_FROM
	}
	return v1.History_HISTORY_NONE
}

// HistoryFromAPI is the way back; unspecified means HistoryNone.
func HistoryFromAPI(h v1.History) (watermark.History, error) {
	switch h {
	case v1.History_HISTORY_UNSPECIFIED, v1.History_HISTORY_NONE:
		return watermark.HistoryNone, nil
	case v1.History_HISTORY_ALL:
		return watermark.HistoryAll, nil
	case v1.History_HISTORY_FROM:
		return watermark.HistoryFrom, nil
	}
	return 0, unknown("history", int32(h))
}

// OrderFromAPI reads the direction of a page; unspecified means Asc.
func OrderFromAPI(o v1.Order) (watermark.Order, error) {
	switch o {
	case v1.Order_ORDER_UNSPECIFIED, v1.Order_ORDER_ASC:
		return watermark.Asc, nil
	case v1.Order_ORDER_DESC:
		return watermark.Desc, nil
	}
	return 0, unknown("order", int32(o))
}

// KeepFromAPI reads which part of a range is served; unspecified means
// NearEnd.
func KeepFromAPI(k v1.Keep) (watermark.Keep, error) {
	switch k {
	case v1.Keep_KEEP_UNSPECIFIED, v1.Keep_KEEP_NEAR_END:
		return watermark.NearEnd, nil
	case v1.Keep_KEEP_NEAR_BEGIN:
		return watermark.NearBegin, nil
	}
	return 0, unknown("keep", int32(k))
}

// BodyTypeToAPI gives a body's type as its name on the wire.
func BodyTypeToAPI(t watermark.BodyType) v1.BodyType {
	switch t {
	case watermark.BodyData:
		return v1.BodyType_BODY_TYPE_DATA
	case watermark.BodyText:
		return v1.BodyType_BODY_TYPE_TEXT
	case watermark.BodyJSON:
		return v1.BodyType_BODY_TYPE_JSON
	}
	return v1.BodyType_BODY_TYPE_UNSPECIFIED
}

// BodyTypeFromAPI is the way back; unspecified means BodyNone.
func BodyTypeFromAPI(t v1.BodyType) (watermark.BodyType, error) {
	switch t {
	case v1.BodyType_BODY_TYPE_UNSPECIFIED:
		return watermark.BodyNone, nil
	case v1.BodyType_BODY_TYPE_DATA:
		return watermark.BodyData, nil
	case v1.BodyType_BODY_TYPE_TEXT:
		return watermark.BodyText, nil
	case v1.BodyType_BODY_TYPE_JSON:
		return watermark.BodyJSON, nil
	}
	return 0, unknown("body_type", int32(t))
}

func unknown(field string, n int32) error {
	var f faults
	f.addf(field, "the value %d is not known", n)
	return f.err("enum")
}
