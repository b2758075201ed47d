// Package top is a live view of a running Sluice: its endpoints, and the decisions as they are made.
package top
