package kube

import (
	"testing"

	"github.com/sluice-epp/sluice/test/kube/cluster"
)

func testManyPods(t *testing.T, c *cluster.Cluster)       { t.Skip() }
func testBrokenWatches(t *testing.T, c *cluster.Cluster)  { t.Skip() }
func testExpiredWatches(t *testing.T, c *cluster.Cluster) { t.Skip() }
func testAPIServerAway(t *testing.T, c *cluster.Cluster)  { t.Skip() }
func testTraffic(t *testing.T, c *cluster.Cluster)        { t.Skip() }
