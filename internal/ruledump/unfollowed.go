package ruledump

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addUnfollowed adds to NotLookedAt what else than rules handles packets: programs and filters of devices, programs of cgroups,
// and IPVS.
func (s *Snapshot) addUnfollowed(links []netlink.Link) {
	for _, l := range links {
		name := l.Attrs().Name
		if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
			s.NotLookedAt = append(s.NotLookedAt, "XDP: a program of "+name)
		}
		for direction, parent := range map[string]uint32{"ingress": netlink.HANDLE_MIN_INGRESS, "egress": netlink.HANDLE_MIN_EGRESS} {
			filters, err := netlink.FilterList(l, parent)
			if attached := programs(uint32(l.Attrs().Index), tcx[direction]); err == nil && len(filters) > 0 || attached > 0 {
				s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("tc: filters of %s, %s", name, direction))
			}
		}
	}
	s.addCgroupPrograms()
	if table, err := os.ReadFile("/proc/thread-self/net/ip_vs"); err == nil && strings.Count(string(table), "\n") > headOfIPVS {
		s.NotLookedAt = append(s.NotLookedAt, "IPVS: its virtual servers")
	}
}

// headOfIPVS is the number of lines in /proc/net/ip_vs before the virtual servers.
const headOfIPVS = 3

// Numbers of bpf(2): where programs are attached.
var tcx = map[string]uint32{"ingress": 46, "egress": 47}

// cgroupPrograms are the places of cgroups that see packets or addresses.
var cgroupPrograms = map[uint32]string{
	0: "ingress", 1: "egress", 10: "connect4", 11: "connect6", 14: "sendmsg4", 15: "sendmsg6", 19: "recvmsg4", 20: "recvmsg6",
}

// maxCgroups bounds the cgroups that are asked for their programs, and cgroupDepth how far below the root they are.
const maxCgroups, cgroupDepth = 1000, 3

// cgroupRoot is where cgroups are mounted. Tests may have none.
const cgroupRoot = "/sys/fs/cgroup"

func (s *Snapshot) addCgroupPrograms() {
	found, asked := map[string]bool{}, 0
	_ = filepath.WalkDir(cgroupRoot, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return nil
		case asked == maxCgroups:
			return fs.SkipAll
		case strings.Count(strings.TrimPrefix(path, cgroupRoot), "/") > cgroupDepth:
			return fs.SkipDir
		}
		asked++
		dir, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer dir.Close()
		for number, name := range cgroupPrograms {
			if programs(uint32(dir.Fd()), number) > 0 && !found[path] {
				found[path] = true
				s.NotLookedAt = append(s.NotLookedAt, fmt.Sprintf("BPF: a program of the cgroup %s (%s)", path, name))
			}
		}
		return nil
	})
}

// programs returns how many BPF programs are attached to a device or a cgroup; 0 where the kernel does not tell.
func programs(target, place uint32) uint32 {
	const query = 16 // BPF_PROG_QUERY
	attributes := struct {
		target, place, flags, attached uint32
		ids                            uint64
		count, pad                     uint32
		attachedFlags, linkIDs, links  uint64
		revision                       uint64
	}{target: target, place: place}
	_, _, errno := unix.Syscall(unix.SYS_BPF, query, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes))
	if errno != 0 && !errors.Is(errno, unix.ENOSPC) {
		return 0
	}
	return attributes.count
}
