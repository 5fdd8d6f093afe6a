package leftovers

import (
	"net"
	"slices"
)

// ipvsDevice is the name of the dummy device of the mode ipvs.
const ipvsDevice = "kube-ipvs0"

// ipvsDevices returns the device if it is there. Virtual servers alone are no sign: others use IPVS too.
func ipvsDevices() ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(interfaces, func(i net.Interface) bool { return i.Name == ipvsDevice }) {
		return []string{ipvsDevice}, nil
	}
	return nil, nil
}
