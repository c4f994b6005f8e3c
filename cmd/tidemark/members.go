package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/watermark"
)

// commandFlags are the flags of the commands to a conversation's owner.
type commandFlags struct {
	conversation, user, actor, op string
	history                       string
	membership                    int32
	seq                           int64
}

// commandCall sends a command.
type commandCall func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error)

// orders makes cmd one that orders something of a conversation's owner. did
// says what was done.
func (a *app) orders(cmd *cobra.Command, f *commandFlags, did func() string, call commandCall) *cobra.Command {
	cmd.GroupID = groupMembers
	cmd.Flags().StringVar(&f.conversation, "conversation", "", "`conversation` it is about")
	cmd.Flags().StringVar(&f.op, "op-id", "", "`id` of the order; a repeat with the same one changes nothing")
	require(cmd, "conversation")
	a.calls(cmd, func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) error {
		res, err := call(ctx, svc)
		if err != nil {
			return err
		}
		a.emit(res, func() { fmt.Fprintf(a.out, "%s: %s\n", f.conversation, commandText(res, did())) })
		return nil
	})
	return cmd
}

func commandText(res *tidemarkv1.CommandResponse, did string) string {
	if !res.GetChanged() {
		did = "nothing changed"
	}
	if res.GetMembership() > 0 {
		did += fmt.Sprintf(", membership %d", res.GetMembership())
		did += ", can see " + rangesText(res.GetVisible())
	}
	if res.GetMinSeq() > res.GetMaxSeq() {
		return did + "; there are no messages"
	}
	return fmt.Sprintf("%s; its seqs are %d to %d", did, res.GetMinSeq(), res.GetMaxSeq())
}

// rangesText gives ranges for people; one without an end grows.
func rangesText(ranges []*tidemarkv1.Range) string {
	if len(ranges) == 0 {
		return "nothing"
	}
	parts := make([]string, len(ranges))
	for i, r := range ranges {
		parts[i] = fmt.Sprintf("%d to %d", r.GetBegin(), r.GetEnd())
		if r.GetEnd() == 0 || r.GetEnd() >= int64(watermark.MaxSeq) {
			parts[i] = fmt.Sprintf("from %d on", r.GetBegin())
		}
	}
	return strings.Join(parts, ", ")
}

func newJoinCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Open a window: a user sees what comes from now on",
		Long: `Join lets a user see a conversation from now on, and with --history what was
before: none, all of it, or from a seq on.`,
		Example: `  tidemark join --conversation group:g1 --user alice
  tidemark join --conversation group:g1 --user alice --history from:100 --actor admin`,
	}
	cmd.Flags().StringVar(&f.user, "user", "", "`user` who joins")
	cmd.Flags().StringVar(&f.history, "history", "none", "earlier messages to be seen: none, all or from:`SEQ`")
	cmd.Flags().StringVar(&f.actor, "actor", "", "`user` who orders it (default the deployment itself)")
	require(cmd, "user")
	return a.orders(cmd, f, func() string { return f.user + " joined" },
		func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error) {
			history, from, err := parseHistory(f.history)
			if err != nil {
				return nil, err
			}
			return svc.Join(ctx, &tidemarkv1.JoinRequest{Conversation: f.conversation, User: f.user, History: history, From: from, OpId: f.op, Actor: f.actor})
		})
}

func parseHistory(s string) (tidemarkv1.History, int64, error) {
	switch s {
	case "none":
		return tidemarkv1.History_HISTORY_NONE, 0, nil
	case "all":
		return tidemarkv1.History_HISTORY_ALL, 0, nil
	}
	if n, ok := strings.CutPrefix(s, "from:"); ok {
		if from, err := strconv.ParseInt(n, 10, 64); err == nil && from > 0 {
			return tidemarkv1.History_HISTORY_FROM, from, nil
		}
	}
	return 0, 0, usagef("--history: %q is none of none, all, from:SEQ", s)
}

func newLeaveCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	cmd := &cobra.Command{
		Use:     "leave",
		Short:   "Close a user's window: what comes is not seen any more",
		Long:    "Leave closes the window of a user at the latest message. What was seen stays visible.",
		Example: "  tidemark leave --conversation group:g1 --user alice",
	}
	cmd.Flags().StringVar(&f.user, "user", "", "`user` who leaves")
	return a.closes(cmd, f, " left", func() string { return f.user })
}

func newKickCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	cmd := &cobra.Command{
		Use:   "kick",
		Short: "Close the window of another user",
		Long: `Kick closes the window of a user at the latest message. With --membership it does
nothing when the user has left and joined again since.`,
		Example: "  tidemark kick --conversation group:g1 --user alice --membership 1 --actor admin",
	}
	cmd.Flags().StringVar(&f.user, "user", "", "`user` who is removed")
	cmd.Flags().StringVar(&f.actor, "actor", "", "`user` who orders it (default the deployment itself)")
	return a.closes(cmd, f, " was removed", func() string { return f.actor })
}

// closes makes cmd one that closes a window.
func (a *app) closes(cmd *cobra.Command, f *commandFlags, did string, actor func() string) *cobra.Command {
	cmd.Flags().Int32Var(&f.membership, "membership", 0, "`number` of the membership that is meant; 0: the current one")
	require(cmd, "user")
	return a.orders(cmd, f, func() string { return f.user + did },
		func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error) {
			return svc.Leave(ctx, &tidemarkv1.LeaveRequest{Conversation: f.conversation, User: f.user, Membership: f.membership, OpId: f.op, Actor: actor()})
		})
}

func newClearCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	cmd := &cobra.Command{
		Use:     "clear",
		Short:   "Hide everything so far from one user",
		Long:    "Clear hides everything up to the latest message from one user. Others see it as before.",
		Example: "  tidemark clear --conversation single:alice:bob --user alice",
	}
	cmd.Flags().StringVar(&f.user, "user", "", "`user` who clears")
	require(cmd, "user")
	return a.orders(cmd, f, func() string { return f.user + " cleared it" },
		func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error) {
			return svc.Clear(ctx, &tidemarkv1.ClearRequest{Conversation: f.conversation, User: f.user, OpId: f.op})
		})
}

func newRaiseMinCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	cmd := &cobra.Command{
		Use:     "raise-min",
		Short:   "Delete everything below a seq, for everybody",
		Long:    "Raise-min deletes the messages below a seq for everybody. It cannot be undone.",
		Example: "  tidemark raise-min --conversation group:g1 --seq 1000",
	}
	cmd.Flags().Int64Var(&f.seq, "seq", 0, "lowest `seq` that stays")
	require(cmd, "seq")
	return a.orders(cmd, f, func() string { return fmt.Sprintf("everything below %d is deleted", f.seq) },
		func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error) {
			return svc.RaiseMinSeq(ctx, &tidemarkv1.RaiseMinSeqRequest{Conversation: f.conversation, MinSeq: f.seq, OpId: f.op})
		})
}

func newRevokeCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	cmd := &cobra.Command{
		Use:     "revoke",
		Short:   "Replace a message by a tombstone, for everybody",
		Long:    "Revoke takes the content of a message away from everybody. Its seq stays, as a tombstone.",
		Example: "  tidemark revoke --conversation group:g1 --seq 12 --actor alice",
	}
	cmd.Flags().Int64Var(&f.seq, "seq", 0, "`seq` of the message")
	cmd.Flags().StringVar(&f.actor, "actor", "", "`user` who orders it (default the deployment itself)")
	require(cmd, "seq")
	return a.orders(cmd, f, func() string { return fmt.Sprintf("message %d is revoked", f.seq) },
		func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error) {
			return svc.Revoke(ctx, &tidemarkv1.RevokeRequest{Conversation: f.conversation, Seq: f.seq, Actor: f.actor, OpId: f.op})
		})
}
