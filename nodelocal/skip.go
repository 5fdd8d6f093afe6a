package nodelocal

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	nodelocalv1 "github.com/nftproxy/nftproxy/nodelocal/v1"
)

// skipLog remembers which reasons to leave something out have been logged. One goroutine uses it.
type skipLog map[string]struct{}

// maxSkipLog is how many reasons are logged. After that they are only counted, so that a server cannot fill log and
// memory.
const maxSkipLog = 1000

// first reports whether a reason is to be logged.
func (l *skipLog) first(reason string) bool {
	if *l == nil {
		*l = skipLog{}
	}
	if _, known := (*l)[reason]; known || len(*l) == maxSkipLog {
		return false
	}
	(*l)[reason] = struct{}{}
	return true
}

// maxWarning is how many bytes of a warning are logged.
const maxWarning = 1000

// warn logs a warning of the server once.
func (c *Client) warn(text string) {
	if text = text[:min(len(text), maxWarning)]; text != "" && c.skipped.first("warning: "+text) {
		c.options.Logger.Info("Warning of the node-local server", "target", c.target, "node", c.options.Node, "warning", text)
	}
}

// skip hears of a port that is left out.
func (c *Client) skip(err error) {
	if c.options.OnSkip != nil {
		c.options.OnSkip(err)
	}
	if c.skipped.first(err.Error()) {
		c.options.Logger.Info("Leaving out a port of the node-local server, this program is too old for it", "target", c.target, "node", c.options.Node, "reason", err.Error())
	}
}

// ignore logs the kinds of changes in an update that this program does not know.
func (c *Client) ignore(update *nodelocalv1.Update) {
	for rest := update.ProtoReflect().GetUnknown(); len(rest) > 0; {
		number, _, length := protowire.ConsumeField(rest)
		if length < 0 {
			return // the decoder has checked it
		}
		rest = rest[length:]
		if reason := fmt.Sprintf("field %d of Update", number); c.skipped.first(reason) {
			c.options.Logger.Info("Ignoring a kind of change of the node-local server, this program is too old for it", "target", c.target, "node", c.options.Node, "reason", reason)
		}
	}
}
