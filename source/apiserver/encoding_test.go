package apiserver

import (
	"testing"

	"github.com/nftproxy/nftproxy/internal/testkit/await"
	"k8s.io/client-go/rest"
)

func TestSource(t *testing.T) {
	// These two wait longest.
	t.Run("leaves a refused resource alone", testRefusedResourceIsLeftAlone)
	t.Run("an outage during a refusal ends", testOutageDuringARefusalEnds)
	t.Run("asks for protobuf", testAnswersAreProtobuf)
	t.Run("takes JSON too", testJSONWorksToo)
	t.Run("passes on changes", testChangesArrive)
	t.Run("a bookmark saves the next list", testBookmarkSavesTheNextList)
	t.Run("an empty list is not believed", testEmptyListIsNotBelieved)
	t.Run("most of a list is held for a while", testMostOfAListIsHeldForAWhile)
	t.Run("another storage is not believed", testAnotherStorageIsNotBelieved)
	t.Run("an empty list at the start is not believed", testEmptyListAtTheStartIsNotBelieved)
	t.Run("a proxy with a name may have no Services", testProxyWithANameMayHaveNoServices)
	t.Run("deletions that are watched are believed", testDeletionsThatAreWatchedAreBelieved)
	t.Run("a list that breaks publishes nothing", testListThatBreaksPublishesNothing)
	t.Run("compaction while disconnected loses nothing", testCompactionWhileDisconnectedLosesNothing)
	t.Run("a streaming list never fails in a way that blocks", testStreamingListNeverFailsInAWayThatBlocks)
	t.Run("foreign and headless objects stay at the server", testForeignAndHeadlessObjectsStayAtTheServer)
	t.Run("an outage loses nothing", testOutageLosesNothing)
	t.Run("dropped connections are replaced", testDroppedConnectionsAreReplaced)
	t.Run("waits for a server that is away at first", testServerThatIsAwayAtFirst)
	t.Run("logs an outage once", testOutageIsLoggedOnce)
	t.Run("does not log errors of an ending context", testErrorsOfAnEndingContextAreNotLogged)
	t.Run("ServiceCIDRs may be refused", testServiceCIDRsMayBeRefused)
	t.Run("a ServiceCIDR deleted during a refusal goes", testServiceCIDRDeletedDuringARefusalGoes)
	t.Run("ends with its context", testRunEndsWithItsContext)
	t.Run("ends at once with an ended context", testRunWithAnEndedContext)
	t.Run("is synced after everything that exists", testSyncedComesAfterEverythingThatExists)
	t.Run("an empty cluster is synced", testEmptyClusterIsSynced)
	t.Run("is synced after every needed resource", testSyncedWaitsForEveryNeededResource)
	t.Run("failing ServiceCIDRs delay nothing", testFailingServiceCIDRsDelayNothing)
	t.Run("does not wait for a failing Node for ever", testFailingNodeIsNotWaitedForForEver)
	t.Run("logs a list that is never answered", testListThatIsNeverAnsweredIsLogged)
	t.Run("passes on trimmed objects", testTrimmedObjectsArrive)
}

func testAnswersAreProtobuf(t *testing.T) {
	forEachObedientServer(t, "tell how it answered", func(t *testing.T, c *cluster) {
		c.create(t, service("web"))
		sink := c.run(t)
		awaitWatches(t, c, sink)
		c.create(t, service("later"))
		await.True(t, "a Service through the watch", sink.has("services/default/later"))

		const accept = "application/vnd.kubernetes.protobuf,application/json"
		for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
			for verb, want := range map[string]string{
				"list":  "application/vnd.kubernetes.protobuf",
				"watch": "application/vnd.kubernetes.protobuf;stream=watch",
			} {
				for _, r := range c.server.Requests(verb, resource) {
					if r.Accept != accept {
						t.Errorf("%s of %s accepts %q, want %q", verb, resource, r.Accept, accept)
					}
					if own := rest.DefaultKubernetesUserAgent(); r.UserAgent != own {
						t.Errorf("%s of %s came from %q, want %q", verb, resource, r.UserAgent, own)
					}
					if r.Status == 200 && r.ContentType != want {
						t.Errorf("%s of %s was answered in %q, want %q", verb, resource, r.ContentType, want)
					}
				}
			}
		}
	})
}

func testJSONWorksToo(t *testing.T) {
	forEachServer(t, func(t *testing.T, c *cluster) {
		c.create(t, service("web"))
		source, err := New(Config{Kubeconfig: c.kubeconfig, NodeName: thisNode, QPS: -1, ContentType: "application/json"})
		if err != nil {
			t.Fatal(err)
		}
		sink := c.run(t, func(s *Source) { *s = *source })
		await.True(t, "Synced", sink.synced)
		c.create(t, service("later"))
		await.True(t, "a Service through the watch", sink.has("services/default/later"))
		if c.server == nil {
			return
		}
		answered := false
		for _, r := range c.server.Requests("watch", "services") {
			answered = answered || r.ContentType == "application/json"
		}
		if !answered {
			t.Error("no watch was answered in JSON")
		}
	})
}
