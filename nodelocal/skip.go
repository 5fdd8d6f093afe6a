package nodelocal

// skipLog remembers which reasons to leave out a port have been logged. One goroutine uses it.
type skipLog map[string]struct{}

// maxSkipLog is how many reasons are logged. After that they are only counted, so that a server cannot fill log and memory.
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

// skip hears of a port that is left out.
func (c *Client) skip(err error) {
	if c.options.OnSkip != nil {
		c.options.OnSkip(err)
	}
	if c.skipped.first(err.Error()) {
		c.options.Logger.Info("Leaving out a port of the node-local server, this program is too old for it", "target", c.target, "node", c.options.Node, "reason", err.Error())
	}
}
