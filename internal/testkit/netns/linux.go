package netns

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// NeedLinux skips the test on a kernel that is older than major.minor. Newer ones must pass it: `make test-kernels` runs
// on older ones too, and lists what it skipped there.
func NeedLinux(t testing.TB, major, minor int) {
	t.Helper()
	release, hasMajor, hasMinor, err := linux()
	if err != nil {
		t.Fatal(err)
	}
	if hasMajor < major || hasMajor == major && hasMinor < minor {
		t.Skipf("needs Linux %d.%d, this is %s", major, minor, release)
	}
}

func linux() (release string, major, minor int, err error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", 0, 0, err
	}
	release = unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return release, 0, 0, fmt.Errorf("kernel release %q: %w", release, err)
	}
	return release, major, minor, nil
}
