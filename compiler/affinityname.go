package compiler

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/nftproxy/nftproxy/model"
)

// maxAffinityName leaves room for prefixes: the kernel takes names of up to 255 bytes (NFT_NAME_MAXLEN).
const maxAffinityName = 200

// affinityName returns the end of the names of a Service port's maps and chains: "namespace.service.tcp.port", without
// ".port" if the port has no name. It has no slash: kube-proxy, when it takes the tables over, deletes chains with a
// slash as its own. If a part is a name that Kubernetes does not allow, which can come from a manifest, a hash of all
// parts replaces the whole, because nft could not list such a name.
func affinityName(id model.PortID) string {
	parts := []string{id.Namespace, id.Service, strings.ToLower(id.Protocol.String())}
	if id.Port != "" {
		parts = append(parts, id.Port)
	}
	name := strings.Join(parts, ".")
	for _, part := range parts {
		if !isName(part) || len(name) > maxAffinityName {
			sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts)) // quoted, because such parts may have dots
			return "_" + hex.EncodeToString(sum[:16])
		}
	}
	return name
}

// isName reports whether a name consists of characters that Kubernetes allows in the names of namespaces, Services and
// ports.
func isName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}
