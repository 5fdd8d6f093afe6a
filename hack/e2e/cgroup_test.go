package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHierarchies(t *testing.T) {
	const (
		memory  = "33 25 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
		again   = "34 25 0:30 / /mnt/memory rw shared:9 - cgroup cgroup rw,memory\n"
		cpu     = "35 25 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
		systemd = "36 25 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		unified = "37 25 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
		only    = "38 25 0:34 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
		root    = "22 1 8:1 / / rw shared:1 - ext4 /dev/vda rw\n"
	)
	v1 := []hierarchy{
		{"/sys/fs/cgroup/memory", []string{"memory"}},
		{"/sys/fs/cgroup/cpu,cpuacct", []string{"cpu", "cpuacct"}},
		{"/sys/fs/cgroup/systemd", []string{"name=systemd"}},
	}
	for name, test := range map[string]struct {
		mounts string
		want   []hierarchy
	}{
		"version 1":                            {root + memory + again + cpu + systemd, v1},
		"version 1, with an idle version 2":    {root + memory + cpu + systemd + unified, v1},
		"version 2":                            {root + only, []hierarchy{{mount: "/sys/fs/cgroup"}}},
		"version 2, with systemd's own of old": {root + systemd + only, []hierarchy{{mount: "/sys/fs/cgroup"}}},
		"none":                                 {root, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parseHierarchies(test.mounts), cmp.AllowUnexported(hierarchy{})); diff != "" {
				t.Errorf("hierarchies (-want +got):\n%s", diff)
			}
		})
	}
}
