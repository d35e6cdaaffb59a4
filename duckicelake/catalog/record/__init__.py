"""The record of who did what: kept beside what is done, for nobody to wait for."""
