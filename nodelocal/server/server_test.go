package server_test

import "testing"

func TestServer(t *testing.T) {
	t.Run("serves older clients", testServerOfOlderClients)
	t.Run("serves later clients", testServerOfLaterClients)
	t.Run("serves over TLS", testServerOverTLS)
	t.Run("refuses node names", testServerRefusesNodeNames)
	t.Run("forgets ports that one node has", testServerForgetsPortsOfOneNode)
	t.Run("bounds the full states under way", testServerBoundsFullStates)
	t.Run("sends full states one by one if it must", testServerSendsOneByOne)
	t.Run("does not wait for slow readers", testServerDoesNotWaitForSlowReaders)
	t.Run("tells who waits for memory", testServerTellsWhoWaits)
	t.Run("limits streams", testServerLimitsStreams)
	t.Run("leaves room beside one bad key", testServerBesideOneBadKey)
	t.Run("leaves room beside handshakes that do not end", testServerBesideHandshakesThatDoNotEnd)
	t.Run("limits the connections of a user", testServerLimitsConnectionsOfAUser)
	t.Run("ends connections without a call", testServerEndsConnectionsWithoutACall)
	t.Run("limits all services", testServerLimitsAllServices)
	t.Run("authorizes all services", testServerAuthorizesAllServices)
	t.Run("disconnects clients that do not read", testServerWithClientsThatDoNotRead)
	t.Run("stands garbage and half-open connections", testServerWithGarbageAndHalfOpenConnections)
	t.Run("listens again when its socket is gone", testServerListensAgain)
	t.Run("stops with streams open", testServerStopsWithStreams)
}
