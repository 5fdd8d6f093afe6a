package v1alpha2

import (
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// NodeLocalConfiguration is the section "nodeLocal". Flags on the command line override it.
type NodeLocalConfiguration struct {
	// Serve is the address of this process's node-local server: unix:///PATH, or tcp://HOST:PORT
	// with the three files below. Empty means that there is none.
	Serve string `json:"serve,omitempty"`
	// Source is the address, in the same form, of the server that replaces the API server as the source of
	// Services.
	Source string `json:"source,omitempty"`
	// CertFile has this side's certificate over tcp://, in PEM. The three files are read for each connection.
	CertFile string `json:"certFile,omitempty"`
	// KeyFile has its key, in PEM.
	KeyFile string `json:"keyFile,omitempty"`
	// CAFile has the certificates of the authority that signs the other side's certificates, in PEM.
	CAFile string `json:"caFile,omitempty"`
	// AuthorizeNodeNames makes the server at tcp:// serve a node to certificates for system:node:NAME only. Default true.
	AuthorizeNodeNames *bool `json:"authorizeNodeNames,omitempty"`
	// Limits bounds what the server at Source can make this process keep.
	Limits NodeLocalLimits `json:"limits,omitzero"`
}

// NodeLocalLimits is the section "nodeLocal.limits". 0 is the default.
type NodeLocalLimits struct {
	// Ports is the limit of Service ports, in one batch and together. Default 200000.
	Ports int32 `json:"ports,omitempty"`
	// Addresses is the limit of their addresses. Default 3000000.
	Addresses int32 `json:"addresses,omitempty"`
	// Bytes is the limit of a batch's length. Default 536870912 (512 MiB).
	Bytes int64 `json:"bytes,omitempty"`
}

// ValidateNodeLocal checks the section "nodeLocal", which may be nil. It does not look for the files.
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
	const zero = "; 0 is the default"
	errs = append(errs, notNegative(path.Child("limits", "ports"), c.Limits.Ports, zero)...)
	errs = append(errs, notNegative(path.Child("limits", "addresses"), c.Limits.Addresses, zero)...)
	return append(errs, notNegative(path.Child("limits", "bytes"), c.Limits.Bytes, zero)...)
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
