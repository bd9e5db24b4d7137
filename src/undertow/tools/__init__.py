"""Instruments around the product: model zoo, lab, simulator, fault driver, doctor."""
