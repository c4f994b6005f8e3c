// Package console serves a page on which a person can watch Tidemark work: chat
// panes of several users beside each other, and the pipeline behind them.
//
// The page is static files that are part of the program, and knows nothing that
// another client does not: it calls the sync API and connects to the gateway.
// Two documents of this package's own come beside it: about.json, which says
// what there is, and pipeline.json, which puts together what the processes say
// about themselves in their metrics and their readiness.
//
// It promises:
//   - Nothing is fetched from anywhere else, nothing runs that is not a file of
//     this package, and no other page can frame it: the headers forbid it.
//   - pipeline.json is for administrators where callers are asked who they are.
//     Files and about.json say nothing about anybody.
//   - A number that no process tells is null, never 0.
//   - However many pages are open, the processes are asked once in Fresh.
//
// It does not add numbers up over time: rates are the page's, from one document
// to the next. A process that does not answer within Patience is shown as such,
// and delays the document by no more than that.
//
// All methods are safe for concurrent use. New starts nothing.
package console
