// Package outlier keeps requests away from engines that fail them: outlier detection in Envoy's sense, from the outcomes
// that Sluice sees. Without it an engine that refuses everything looks idle, and draws all traffic.
package outlier
