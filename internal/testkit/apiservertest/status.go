package apiservertest

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// user is who the bearer token stands for.
const user = "system:kube-proxy"

// statusOf turns any error into the Status object that a client gets.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	return &status
}

func errForbidden(res *resource, verb string) error {
	return apierrors.NewForbidden(res.groupResource(), "", fmt.Errorf(
		"user %q cannot %s resource %q in API group %q at the cluster scope", user, verb, res.plural, res.kind.Group))
}

func errUnsupportedMediaType(contentType string) error {
	return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "",
		fmt.Sprintf("the body of the request was in an unknown format %q", contentType), 0, false)
}

// errVersionInFuture is the answer to a version that the server has not reached: clients see it
// when they come to a server that was restored from a backup.
func errVersionInFuture(asked, current uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

func errVersionExpired(asked, compacted uint64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", asked, compacted))
}

// errNoWatchList is what servers answer to a streaming list when they do not have it switched on.
func errNoWatchList() error {
	err := apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", nil)
	err.ErrStatus.Message = `ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: ` +
		"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
	return err
}
