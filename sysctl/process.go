package sysctl

import "fmt"

const oomScoreFile = "proc/self/oom_score_adj"

// SetOOMScoreAdj makes the kernel more (up to 1000) or less (down to -1000) willing to kill this
// process when memory runs out. kube-proxy's default is -999. A value below the one that
// the process started with needs CAP_SYS_RESOURCE. A program should continue after a failure.
func (t Tree) SetOOMScoreAdj(value int) error {
	current, err := t.readInt(oomScoreFile)
	if err != nil {
		return fmt.Errorf("read oom_score_adj: %w", err)
	}
	if current == value {
		return nil
	}
	if err := t.writeInt(oomScoreFile, value); err != nil {
		return fmt.Errorf("oom_score_adj is %d and cannot be set to %d: %w; it may be -1000 to 1000, and lowering it needs CAP_SYS_RESOURCE", current, value, reason(err))
	}
	return nil
}
