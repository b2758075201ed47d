// Package page tests the page of the admin port in a real Chromium, in front of a real Sluice, Envoy and simulated engines.
// SLUICE_CHROMIUM is the browser's path; make test-page sets it.
package page
