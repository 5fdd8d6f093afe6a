package apiserver

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"
)

// An error that the reflector would wait out without listening to its context must not reach it.
func testStreamingListNeverFailsInAWayThatBlocks(t *testing.T) {
	for name, err := range map[string]error{
		"connection refused": fmt.Errorf("dial: %w", syscall.ECONNREFUSED),
		"too many requests":  apierrors.NewTooManyRequests("busy", 1),
	} {
		t.Run(name, func(t *testing.T) {
			logs := &logLines{}
			ctx := klog.NewContext(context.Background(), logs.logger(0))
			initial := true

			got := watchFailed(ctx, metav1.ListOptions{SendInitialEvents: &initial}, err, newOutage("services"))
			if got == nil || utilnet.IsConnectionRefused(got) || apierrors.IsTooManyRequests(got) {
				t.Errorf("a streaming list fails with %v", got)
			}
			if logs.count("Cannot list") != 0 {
				t.Error("logged here, and again by the list that follows")
			}
			if got := watchFailed(ctx, metav1.ListOptions{}, err, newOutage("services")); got != err {
				t.Errorf("a watch fails with %v, want %v as it was", got, err)
			}
			if logs.count("Cannot list") != 1 {
				t.Error("the reflector does not log this, and neither did we")
			}
		})
	}
}
