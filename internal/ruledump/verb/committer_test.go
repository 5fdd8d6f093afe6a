package verb

import (
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
)

func TestCommitter(t *testing.T) {
	own := findCommitter(uint32(os.Getpid()))
	if want := fmt.Sprintf(" (pid %d)", os.Getppid()); !strings.HasSuffix(own.Parent, want) {
		t.Errorf("the parent is %q, want %q", own.Parent, want)
	}
	if text, err := os.ReadFile("/proc/self/cgroup"); err != nil || own.Cgroup == "" || !strings.Contains(string(text), ":"+own.Cgroup+"\n") {
		t.Errorf("the cgroup is %q, %v, and the kernel says\n%s", own.Cgroup, err, text)
	}
	if got := findCommitter(0); got != (committer{}) {
		t.Errorf("of nobody: %+v", got)
	}
	for _, tt := range []struct {
		c    committer
		want string
	}{
		{committer{"firewalld (pid 812)", "/system.slice/firewalld.service"}, ", started by firewalld (pid 812), in firewalld.service"},
		{committer{Cgroup: "/kubepods.slice/" + path.Join("pod1", "cri-containerd-4711.scope")}, ", in cri-containerd-4711.scope"},
		{committer{Cgroup: "/"}, ""},
	} {
		if got := tt.c.text(); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.c, got, tt.want)
		}
	}
}
