// Package audit checks a deployment from the outside, beside its traffic:
// history, what Redis holds of it, and the sequenced log that both follow from.
//
// It knows the formats in which things stand and what must be so between them,
// but nothing of how the roles bring it about: no role's code runs here, and
// Redis is read by scripts of this package's own.
//
// It promises:
//   - No false alarm beside traffic. What looks wrong is a suspicion, which
//     says what one store must reach because another one had it. The workers are
//     waited for until they have passed everything that stood in their topics
//     when the suspicion arose, and then it is looked at again; only what still
//     does not hold is a finding. What the workers do not pass in time is
//     undecided, which is neither clean nor a finding.
//   - Memory does not grow with what is audited: conversations come in batches,
//     rows, hot logs, members and the log in pages, suspicions are settled
//     before they become many, findings are handed on and not kept. The bounds
//     are constants in audit.go.
//   - Without a Mender nothing is changed. With one, what follows from another
//     store without guessing is mended. No message that somebody can see is
//     ever made up or deleted.
//
// It does not promise one moment: what changes while it looks is judged by what
// it was when it was looked at, or later. Not looked at: conversations that
// history has nothing of, lists of own messages, and the ids that Redis
// remembers for resends.
//
// An Auditor runs one Run or Patrol at a time. When a source cannot be read, Run returns that
// error with the report so far. DESIGN.md says what is read in which order, and
// why the tail of the log is waited for instead of being read.
package audit
