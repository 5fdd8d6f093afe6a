package v1alpha2

import (
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateNodeLocal checks the section "nodeLocal", which may be nil. That tcp:// needs files is found when they are read.
func ValidateNodeLocal(c *NodeLocalConfiguration) (errs field.ErrorList) {
	if c == nil {
		return nil
	}
	path := field.NewPath("nodeLocal")
	errs = append(errs, validateNodeLocalAddress(c.Serve, path.Child("serve"))...)
	errs = append(errs, validateNodeLocalAddress(c.Source, path.Child("source"))...)
	if c.Serve != "" && c.Source != "" {
		errs = append(errs, field.Forbidden(path.Child("source"), "cannot be combined with nodeLocal.serve: clients can ask that server itself, at its --listen"))
	}
	for _, limit := range []struct {
		name string
		n    int64
	}{{"ports", int64(c.Limits.Ports)}, {"addresses", int64(c.Limits.Addresses)}, {"bytes", c.Limits.Bytes}} {
		if limit.n < 0 {
			errs = append(errs, field.Invalid(path.Child("limits", limit.name), limit.n, wantNotBelow+"; 0 is the default"))
		}
	}
	return errs
}

func validateNodeLocalAddress(address string, path *field.Path) field.ErrorList {
	if address == "" || strings.HasPrefix(address, "unix:///") {
		return nil
	}
	if rest, is := strings.CutPrefix(address, "tcp://"); is {
		if _, port, err := net.SplitHostPort(rest); err == nil && port != "" {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(path, address, "must be unix:///PATH or tcp://HOST:PORT")}
}
