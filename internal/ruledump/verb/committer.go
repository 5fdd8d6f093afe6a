package verb

import (
	"fmt"
	"os"
	"path"
	"strings"
)

// maxCgroup bounds the bytes of a cgroup's path that are shown; container runtimes have some 200.
const maxCgroup = 512

// committer is what started the process that committed, and where the process runs, as far as /proc still has it. A process
// may have ended before it is looked at.
type committer struct {
	// Parent: the process that started the committing one, as in "firewalld (pid 812)"
	Parent string `json:"parent,omitempty"`
	// Cgroup: path of the process's cgroup, which names the unit or the container, as in "/system.slice/firewalld.service"
	Cgroup string `json:"cgroup,omitempty"`
}

// findCommitter looks at a process; it returns the zero value if that has ended or is not known (0).
func findCommitter(pid uint32) (c committer) {
	if pid == 0 {
		return c
	}
	status := procFile(pid, "status")
	_, after, _ := strings.Cut(status, "\nPPid:\t")
	parent, _, _ := strings.Cut(after, "\n")
	if name, err := os.ReadFile("/proc/" + parent + "/comm"); err == nil && parent != "0" && parent != "" {
		c.Parent = fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), parent)
	}
	for line := range strings.Lines(procFile(pid, "cgroup")) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, where, _ := strings.Cut(rest, ":")
		if controllers == "" || controllers == "name=systemd" && c.Cgroup == "" { // version 2, or systemd's of version 1
			c.Cgroup = where[:min(len(where), maxCgroup)]
		}
	}
	return c
}

func procFile(pid uint32, name string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name)) // empty if the process has ended
	return string(text)
}

// text is for the end of a line; empty if nothing is known.
func (c committer) text() (text string) {
	if c.Parent != "" {
		text = ", started by " + c.Parent
	}
	if unit := path.Base(c.Cgroup); c.Cgroup != "" && unit != "/" {
		text += ", in " + unit
	}
	return text
}
