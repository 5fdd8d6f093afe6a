package apiserver

import (
	"os"
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
)

// Most of these tests is waiting for the back-off of a reflector.
func TestMain(m *testing.M) {
	await.Parallel("24")
	os.Exit(m.Run())
}
